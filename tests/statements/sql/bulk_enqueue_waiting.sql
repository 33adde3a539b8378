WITH edge AS MATERIALIZED (SELECT job_bulk_staging.id AS job_id, each.chain_id AS chain_id, CAST(each.ordinal - 1 AS INTEGER) AS place, ended.chain_id IS NOT NULL
  AND NOT (NOT ended.completed
    AND coalesce(job_bulk_staging.on_failure, 'wait') != 'continue') AS is_resolved, coalesce(job_bulk_staging.on_failure, 'wait') AS on_failure, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS trace_context
  FROM job_bulk_staging
  JOIN unnest(job_bulk_staging.blockers) WITH ORDINALITY AS each(chain_id, ordinal) ON true
  LEFT OUTER JOIN unnest(%(ended_ids)s::UUID[], %(completed)s::BOOLEAN[]) AS ended(chain_id, completed) ON ended.chain_id = each.chain_id
  WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
  AND job_bulk_staging.sequence = %(sequence)s::BIGINT
  AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_bulk_staging.rejected_reason IS NULL
  AND job_bulk_staging.blockers IS NOT NULL), waits AS (SELECT edge.job_id AS job_id, count(*) FILTER (WHERE NOT edge.is_resolved) AS open
  FROM edge
  GROUP BY edge.job_id), awaited AS (SELECT DISTINCT edge.chain_id AS chain_id
  FROM edge), inserted AS (INSERT INTO job (id, queue, fairness_key, type_name, priority, chain_id, chain_type_name, input, input_version, scheduled_at, max_attempts, timeout, deduplication_key, trace_context, chain_trace_context, rate_cost, expires_at, ordering_key, skip_while_retrying, status, open_blockers, has_waiters)
  SELECT job_bulk_staging.id AS id, coalesce(job_bulk_staging.queue, %(queue)s::VARCHAR) AS coalesce_1, coalesce(job_bulk_staging.fairness_key, '') AS coalesce_2, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce_3, coalesce(job_bulk_staging.priority, %(priority)s::SMALLINT) AS coalesce_4, job_bulk_staging.id AS id__1, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce__1, coalesce(job_bulk_staging.input, CAST('null' AS JSONB)) AS coalesce_5, coalesce(job_bulk_staging.input_version, %(input_version)s::INTEGER) AS coalesce_6, greatest(job_bulk_staging.scheduled_at, now() + coalesce(job_bulk_staging.delay, interval '0')) AS greatest_1, coalesce(job_bulk_staging.max_attempts, %(max_attempts)s::INTEGER) AS coalesce_7, job_bulk_staging.timeout AS timeout, job_bulk_staging.deduplication_key AS deduplication_key, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce_8, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce__2, coalesce(job_bulk_staging.rate_cost, %(rate_cost)s::INTEGER) AS coalesce_9, job_bulk_staging.expires_at AS expires_at, job_bulk_staging.ordering_key AS ordering_key, job_bulk_staging.skip_while_retrying AS skip_while_retrying, CAST(CASE WHEN (coalesce(waits.open, 0) > 0) THEN 'blocked' ELSE 'pending' END AS job_status) AS anon_1, coalesce(waits.open, 0) AS coalesce_10, awaited.chain_id IS NOT NULL AS anon_2
  FROM job_bulk_staging
  LEFT OUTER JOIN waits ON waits.job_id = job_bulk_staging.id
  LEFT OUTER JOIN awaited ON job_bulk_staging.id = awaited.chain_id
  WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
  AND job_bulk_staging.sequence = %(sequence)s::BIGINT
  AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_bulk_staging.rejected_reason IS NULL
  ORDER BY coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) COLLATE "C", job_bulk_staging.deduplication_key COLLATE "C", job_bulk_staging.task_id, job_bulk_staging.row
  ON CONFLICT (chain_type_name, deduplication_key)
  WHERE deduplication_key IS NOT NULL
  AND chain_index = 0
  AND chain_completed_at IS NULL DO NOTHING
  RETURNING job.id), written AS (INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved, on_failure, trace_context)
  SELECT edge.job_id AS job_id, edge.chain_id AS chain_id, edge.place AS place, edge.is_resolved AS is_resolved, edge.on_failure AS on_failure, edge.trace_context AS trace_context
  FROM edge
  JOIN inserted ON inserted.id = edge.job_id
  RETURNING 1)
SELECT count(*) AS count_1
FROM inserted
