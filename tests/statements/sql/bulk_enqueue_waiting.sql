WITH edge AS MATERIALIZED (SELECT job_stage.id AS job_id, each.chain_id AS chain_id, CAST(each.ordinal - 1 AS INTEGER) AS place, ended.chain_id IS NULL OR NOT ended.completed
  AND coalesce(job_stage.on_failure, 'wait') != 'continue' AS is_open, coalesce(job_stage.on_failure, 'wait') AS on_failure, coalesce(job_stage.trace_context, %(trace_context)s::VARCHAR) AS trace_context
  FROM job_stage
  JOIN unnest(job_stage.blockers) WITH ORDINALITY AS each(chain_id, ordinal) ON true
  LEFT OUTER JOIN unnest(%(ended_ids)s::UUID[], %(completed)s::BOOLEAN[]) AS ended(chain_id, completed) ON ended.chain_id = each.chain_id
  WHERE job_stage.write_id = %(write_id)s::VARCHAR
  AND job_stage.sequence = %(sequence)s::BIGINT
  AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_stage.rejected_reason IS NULL
  AND job_stage.blockers IS NOT NULL), waits AS (SELECT edge.job_id AS job_id, count(*) FILTER (WHERE edge.is_open) AS open
  FROM edge
  GROUP BY edge.job_id), awaited AS (SELECT DISTINCT edge.chain_id AS chain_id
  FROM edge), inserted AS (INSERT INTO job (id, queue, type_name, priority, chain_id, chain_type_name, input, input_version, scheduled_at, max_attempts, timeout, deduplication_key, trace_context, chain_trace_context, rate_weight, expires_at, ordering_key, steps_aside, status, open_blockers, is_awaited)
  SELECT job_stage.id AS id, coalesce(job_stage.queue, %(queue)s::VARCHAR) AS coalesce_1, coalesce(job_stage.type_name, %(type_name)s::VARCHAR) AS coalesce_2, coalesce(job_stage.priority, %(priority)s::SMALLINT) AS coalesce_3, job_stage.id AS id__1, coalesce(job_stage.type_name, %(type_name)s::VARCHAR) AS coalesce__1, coalesce(job_stage.input, CAST('null' AS JSONB)) AS coalesce_4, coalesce(job_stage.input_version, %(input_version)s::INTEGER) AS coalesce_5, greatest(job_stage.scheduled_at, now() + coalesce(job_stage.delay, interval '0')) AS greatest_1, coalesce(job_stage.max_attempts, %(max_attempts)s::INTEGER) AS coalesce_6, job_stage.timeout AS timeout, job_stage.deduplication_key AS deduplication_key, coalesce(job_stage.trace_context, %(trace_context)s::VARCHAR) AS coalesce_7, coalesce(job_stage.trace_context, %(trace_context)s::VARCHAR) AS coalesce__2, coalesce(job_stage.rate_weight, %(rate_weight)s::INTEGER) AS coalesce_8, job_stage.expires_at AS expires_at, job_stage.ordering_key AS ordering_key, job_stage.steps_aside AS steps_aside, CAST(CASE WHEN (coalesce(waits.open, 0) > 0) THEN 'blocked' ELSE 'pending' END AS job_status) AS anon_1, coalesce(waits.open, 0) AS coalesce_9, awaited.chain_id IS NOT NULL AS anon_2
  FROM job_stage
  LEFT OUTER JOIN waits ON waits.job_id = job_stage.id
  LEFT OUTER JOIN awaited ON job_stage.id = awaited.chain_id
  WHERE job_stage.write_id = %(write_id)s::VARCHAR
  AND job_stage.sequence = %(sequence)s::BIGINT
  AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_stage.rejected_reason IS NULL
  ORDER BY coalesce(job_stage.type_name, %(type_name)s::VARCHAR) COLLATE "C", job_stage.deduplication_key COLLATE "C", job_stage.task_id, job_stage.row
  ON CONFLICT (chain_type_name, deduplication_key)
  WHERE deduplication_key IS NOT NULL
  AND chain_index = 0
  AND chain_completed_at IS NULL DO NOTHING
  RETURNING job.id), written AS (INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, open, on_failure, trace_context)
  SELECT edge.job_id AS job_id, edge.chain_id AS chain_id, edge.place AS place, edge.is_open AS is_open, edge.on_failure AS on_failure, edge.trace_context AS trace_context
  FROM edge
  JOIN inserted ON inserted.id = edge.job_id
  RETURNING 1)
SELECT count(*) AS count_1
FROM inserted
