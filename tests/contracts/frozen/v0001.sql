-- add {}
INSERT INTO job (id, queue, fairness_key, type_name, priority, chain_id, chain_type_name, chain_index, input, input_version, output, status, open_blockers, started_at, completed_at, completed_by, attempt, max_attempts, timeout, last_error, leased_by, leased_until, deduplication_key, chain_completed_at, trace_context, chain_trace_context, chain_status, expires_at, ordering_key, skip_while_retrying, rate_cost)
VALUES (%(id)s::UUID, %(queue)s::VARCHAR, %(fairness_key)s::VARCHAR, %(type_name)s::VARCHAR, %(priority)s::SMALLINT, %(chain_id)s::UUID, %(chain_type_name)s::VARCHAR, %(chain_index)s::INTEGER, %(input)s::JSONB, %(input_version)s::INTEGER, %(output)s::JSONB, %(status)s, %(open_blockers)s::INTEGER, %(started_at)s::TIMESTAMP WITH TIME ZONE, %(completed_at)s::TIMESTAMP WITH TIME ZONE, %(completed_by)s::VARCHAR, %(attempt)s::INTEGER, %(max_attempts)s::INTEGER, %(timeout)s::INTERVAL, %(last_error)s::JSONB, %(leased_by)s::VARCHAR, %(leased_until)s::TIMESTAMP WITH TIME ZONE, %(deduplication_key)s::VARCHAR, %(chain_completed_at)s::TIMESTAMP WITH TIME ZONE, %(trace_context)s::VARCHAR, %(chain_trace_context)s::VARCHAR, %(chain_status)s, %(expires_at)s::TIMESTAMP WITH TIME ZONE, %(ordering_key)s::VARCHAR, %(skip_while_retrying)s, %(rate_cost)s::INTEGER)
RETURNING job.changed_xid, job.created_at, job.has_waiters, job.scheduled_at

-- add_edges {}
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved, on_failure, trace_context)
SELECT given.job_id, given.chain_id, given.place, given.is_resolved, given.policy, given.trace
FROM unnest(%(job_ids)s::UUID[], %(chain_ids)s::UUID[], %(indexes)s::INTEGER[], %(resolved)s::BOOLEAN[], %(policies)s::TEXT[], %(traces)s::TEXT[]) AS given(job_id, chain_id, place, is_resolved, policy, trace)

-- attempts {"attempt_1": 3, "job_id_1": "00000000-0000-0000-0000-000000000000", "param_1": 50}
SELECT job_attempt.job_id, job_attempt.attempt, job_attempt.worker_id, job_attempt.started_at, job_attempt.ended_at, job_attempt.outcome, job_attempt.error, job_attempt.error_fingerprint, job_attempt.changed_xid
FROM job_attempt
WHERE job_attempt.job_id = %(job_id_1)s::UUID
AND job_attempt.attempt < %(attempt_1)s::INTEGER
ORDER BY job_attempt.attempt DESC
LIMIT %(param_1)s::INTEGER

-- audit_page {"done_by_1_1": "ann", "operation_1_1": "cancel_jobs", "param_1": 10000, "param_2": 51, "place_1": 10000}
SELECT found.id, found.place, found.fits, job_audit.id AS id_1, job_audit.done_at, job_audit.done_by, job_audit.operation, job_audit.arguments, job_audit.matched, job_audit.changed, job_audit.ids
FROM (SELECT walked.id AS id, walked.place AS place, walked.fits AS fits
  FROM (SELECT job_audit.id AS id, row_number() OVER (ORDER BY job_audit.id DESC) AS place, job_audit.operation IN (%(operation_1_1)s::VARCHAR)
    AND job_audit.done_by IN (%(done_by_1_1)s::VARCHAR) AS fits
    FROM job_audit
    ORDER BY job_audit.id DESC
    LIMIT %(param_1)s::INTEGER) AS walked
  WHERE walked.fits OR walked.place = %(place_1)s::INTEGER
  ORDER BY walked.id DESC
  LIMIT %(param_2)s::INTEGER) AS found
JOIN job_audit ON job_audit.id = found.id
ORDER BY found.id DESC

-- audit_prune {}
WITH oldest AS (SELECT job_audit.id AS id, job_audit.done_at AS done_at
  FROM job_audit
  ORDER BY job_audit.id
  LIMIT %(limit)s::INTEGER)
DELETE
FROM job_audit
WHERE job_audit.id IN (SELECT oldest.id
  FROM oldest
  WHERE oldest.done_at < now() - %(age)s::INTERVAL)
RETURNING job_audit.id

-- audit_put {}
INSERT INTO job_audit (id, done_by, operation, arguments, matched, changed, ids)
VALUES (%(id)s::UUID, %(done_by)s::VARCHAR, %(operation)s::VARCHAR, %(arguments)s::JSONB, %(matched)s::INTEGER, %(changed)s::INTEGER, %(ids)s::JSONB)

-- await_chains {"has_waiters": true}
UPDATE job
SET has_waiters=%(has_waiters)s
WHERE job.id = ANY (%(ids)s::UUID[])
AND NOT job.has_waiters

-- blocker_counts {}
SELECT EXISTS (SELECT job.id
  FROM job
  WHERE job.id = %(job_id)s::UUID) AS is_there, count(*) FILTER (WHERE root.chain_completed_at IS NULL) AS open, count(*) FILTER (WHERE root.chain_completed_at IS NOT NULL
  AND coalesce(root.chain_status, root.status) = 'completed') AS completed, count(*) FILTER (WHERE root.chain_completed_at IS NOT NULL
  AND coalesce(root.chain_status, root.status) = 'dead') AS dead, count(*) FILTER (WHERE root.chain_completed_at IS NOT NULL
  AND coalesce(root.chain_status, root.status) = 'cancelled') AS cancelled
FROM job_blocker
JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
WHERE job_blocker.job_id = %(job_id)s::UUID

-- blocker_outcomes {}
SELECT root.id, root.type_name, last.status, CASE WHEN (last.status = 'completed') THEN last.output END AS anon_1, CASE WHEN (last.status != 'completed') THEN last.last_error END AS anon_2
FROM job_blocker
JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
JOIN job AS last ON last.id = coalesce((SELECT later.id
    FROM job AS later
    WHERE later.root_id = root.id
    ORDER BY later.chain_index DESC
    LIMIT 1), root.id)
WHERE job_blocker.job_id = %(job_id)s::UUID
ORDER BY job_blocker.index

-- bulk_account {}
UPDATE job_bulk_write
SET staged=%(staged)s::BIGINT, enqueued=%(enqueued)s::BIGINT, duplicates=%(duplicates)s::BIGINT, rejected=%(rejected)s::BIGINT
WHERE job_bulk_write.write_id = %(of_write)s::VARCHAR
AND job_bulk_write.sequence = %(of_sequence)s::BIGINT

-- bulk_chains_waited_for {}
WITH edge AS MATERIALIZED (SELECT job_bulk_staging.id AS job_id, each.chain_id AS chain_id
  FROM job_bulk_staging, unnest(job_bulk_staging.blockers) WITH ORDINALITY AS each(chain_id, ordinal)
  WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
  AND job_bulk_staging.sequence = %(sequence)s::BIGINT
  AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_bulk_staging.rejected_reason IS NULL
  AND job_bulk_staging.blockers IS NOT NULL)
SELECT DISTINCT edge.chain_id
FROM edge
WHERE NOT (EXISTS (SELECT "new".id
    FROM job_bulk_staging AS "new"
    WHERE "new".write_id = %(write_id)s::VARCHAR
    AND "new".sequence = %(sequence)s::BIGINT
    AND "new".task_id = ANY (%(task_ids)s::BIGINT[])
    AND "new".rejected_reason IS NULL
    AND "new".id = edge.chain_id))

-- bulk_circular_edges {}
WITH edge AS MATERIALIZED (SELECT job_bulk_staging.id AS job_id, each.chain_id AS chain_id
  FROM job_bulk_staging, unnest(job_bulk_staging.blockers) WITH ORDINALITY AS each(chain_id, ordinal)
  WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
  AND job_bulk_staging.sequence = %(sequence)s::BIGINT
  AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_bulk_staging.rejected_reason IS NULL
  AND job_bulk_staging.blockers IS NOT NULL)
SELECT edge.job_id, edge.chain_id
FROM edge
WHERE edge.chain_id IN (SELECT waiting.job_id
  FROM edge AS waiting)
AND edge.job_id IN (SELECT awaited.chain_id
  FROM edge AS awaited)

-- bulk_clear_left_over {}
DELETE
FROM job_bulk_staging
WHERE job_bulk_staging.staged_at < now() - %(age)s::INTERVAL

-- bulk_clear_stage {}
DELETE
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence <= %(sequence)s::BIGINT

-- bulk_count_staged {}
SELECT job_bulk_staging.queue, count(*) AS count_1, count(job_bulk_staging.rejected_reason) AS count_2, count(job_bulk_staging.deduplication_key) AS count_3, count(job_bulk_staging.blockers) AS count_4, max(job_bulk_staging.fairness_key) AS fairness_key
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
GROUP BY job_bulk_staging.queue

-- bulk_enqueue_staged {}
INSERT INTO job (id, queue, fairness_key, type_name, priority, chain_id, chain_type_name, input, input_version, scheduled_at, max_attempts, timeout, deduplication_key, trace_context, chain_trace_context, rate_cost, expires_at, ordering_key, skip_while_retrying, status, open_blockers, has_waiters)
SELECT job_bulk_staging.id, coalesce(job_bulk_staging.queue, %(queue)s::VARCHAR) AS coalesce_1, coalesce(job_bulk_staging.fairness_key, '') AS coalesce_2, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce_3, coalesce(job_bulk_staging.priority, %(priority)s::SMALLINT) AS coalesce_4, job_bulk_staging.id AS id__1, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce__1, coalesce(job_bulk_staging.input, CAST('null' AS JSONB)) AS coalesce_5, coalesce(job_bulk_staging.input_version, %(input_version)s::INTEGER) AS coalesce_6, greatest(job_bulk_staging.scheduled_at, now() + coalesce(job_bulk_staging.delay, interval '0')) AS greatest_1, coalesce(job_bulk_staging.max_attempts, %(max_attempts)s::INTEGER) AS coalesce_7, job_bulk_staging.timeout, job_bulk_staging.deduplication_key, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce_8, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce__2, coalesce(job_bulk_staging.rate_cost, %(rate_cost)s::INTEGER) AS coalesce_9, job_bulk_staging.expires_at, job_bulk_staging.ordering_key, job_bulk_staging.skip_while_retrying, 'pending', 0, false
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_bulk_staging.rejected_reason IS NULL

-- bulk_enqueue_staged_keyed {}
INSERT INTO job (id, queue, fairness_key, type_name, priority, chain_id, chain_type_name, input, input_version, scheduled_at, max_attempts, timeout, deduplication_key, trace_context, chain_trace_context, rate_cost, expires_at, ordering_key, skip_while_retrying, status, open_blockers, has_waiters)
SELECT job_bulk_staging.id, coalesce(job_bulk_staging.queue, %(queue)s::VARCHAR) AS coalesce_1, coalesce(job_bulk_staging.fairness_key, '') AS coalesce_2, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce_3, coalesce(job_bulk_staging.priority, %(priority)s::SMALLINT) AS coalesce_4, job_bulk_staging.id AS id__1, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce__1, coalesce(job_bulk_staging.input, CAST('null' AS JSONB)) AS coalesce_5, coalesce(job_bulk_staging.input_version, %(input_version)s::INTEGER) AS coalesce_6, greatest(job_bulk_staging.scheduled_at, now() + coalesce(job_bulk_staging.delay, interval '0')) AS greatest_1, coalesce(job_bulk_staging.max_attempts, %(max_attempts)s::INTEGER) AS coalesce_7, job_bulk_staging.timeout, job_bulk_staging.deduplication_key, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce_8, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce__2, coalesce(job_bulk_staging.rate_cost, %(rate_cost)s::INTEGER) AS coalesce_9, job_bulk_staging.expires_at, job_bulk_staging.ordering_key, job_bulk_staging.skip_while_retrying, 'pending', 0, false
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_bulk_staging.rejected_reason IS NULL
ORDER BY coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) COLLATE "C", job_bulk_staging.deduplication_key COLLATE "C", job_bulk_staging.task_id, job_bulk_staging.row
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO NOTHING

-- bulk_enqueue_waiting {}
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

-- bulk_find_write {}
SELECT job_bulk_write.staged, job_bulk_write.enqueued, job_bulk_write.duplicates, job_bulk_write.rejected
FROM job_bulk_write
WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
AND job_bulk_write.sequence = %(sequence)s::BIGINT

-- bulk_guard {"set_config_11": "work_mem", "set_config_12": "64MB", "set_config_2": "enable_nestloop", "set_config_3": "off", "set_config_5": "enable_mergejoin", "set_config_6": "off", "set_config_8": "jit", "set_config_9": "off"}
SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, true) AS set_config_1, set_config(%(set_config_5)s::VARCHAR, %(set_config_6)s::VARCHAR, true) AS set_config_4, set_config(%(set_config_8)s::VARCHAR, %(set_config_9)s::VARCHAR, true) AS set_config_7, set_config(%(set_config_11)s::VARCHAR, %(set_config_12)s::VARCHAR, true) AS set_config_10

-- bulk_reject_staged {}
INSERT INTO job_bulk_reject (write_id, sequence, task_id, row, field, reason, record)
SELECT job_bulk_staging.write_id, job_bulk_staging.sequence, job_bulk_staging.task_id, job_bulk_staging.row, job_bulk_staging.rejected_field, job_bulk_staging.rejected_reason, job_bulk_staging.record
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_bulk_staging.rejected_reason IS NOT NULL

-- bulk_reject_taken_ids {}
UPDATE job_bulk_staging
SET rejected_field='id', rejected_reason='is that of another job, in the queue or in this write', record=CAST(jsonb_strip_nulls(jsonb_build_object('id', job_bulk_staging.id, 'queue', job_bulk_staging.queue, 'fairness_key', job_bulk_staging.fairness_key, 'type_name', job_bulk_staging.type_name, 'priority', job_bulk_staging.priority, 'input_version', job_bulk_staging.input_version, 'scheduled_at', job_bulk_staging.scheduled_at, 'delay', job_bulk_staging.delay, 'max_attempts', job_bulk_staging.max_attempts, 'timeout', job_bulk_staging.timeout, 'deduplication_key', job_bulk_staging.deduplication_key, 'blockers', job_bulk_staging.blockers, 'on_failure', job_bulk_staging.on_failure, 'trace_context', job_bulk_staging.trace_context, 'rate_cost', job_bulk_staging.rate_cost, 'expires_at', job_bulk_staging.expires_at, 'ordering_key', job_bulk_staging.ordering_key, 'skip_while_retrying', job_bulk_staging.skip_while_retrying)) || jsonb_build_object('input', job_bulk_staging.input) AS TEXT)
FROM (SELECT each.task_id AS task_id, each.row AS row, row_number() OVER (PARTITION BY each.id
    ORDER BY each.task_id, each.row) AS place, job.id AS job_id
  FROM job_bulk_staging AS each
  LEFT OUTER JOIN job ON job.id = each.id
  WHERE each.write_id = %(of_write_id)s::VARCHAR
  AND each.sequence = %(of_sequence)s::BIGINT
  AND each.task_id = ANY (%(of_task_ids)s::BIGINT[])
  AND each.rejected_reason IS NULL) AS found
WHERE job_bulk_staging.write_id = %(of_write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(of_sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(of_task_ids)s::BIGINT[])
AND job_bulk_staging.task_id = found.task_id
AND job_bulk_staging.row = found.row
AND (found.place > 1 OR found.job_id IS NOT NULL)

-- bulk_take_write {}
INSERT INTO job_bulk_write (write_id, sequence, staged, enqueued, duplicates, rejected, written_by)
VALUES (%(write_id)s::VARCHAR, %(sequence)s::BIGINT, 0, 0, 0, 0, %(written_by)s::VARCHAR)
ON CONFLICT (write_id, sequence) DO NOTHING
RETURNING job_bulk_write.sequence

-- candidates {}
WITH picked AS (SELECT taken.id AS id
  FROM unnest(%(late_ids)s::UUID[], CAST(%(late_xids)s::TEXT[] AS xid8[])) AS late(id, xid)
  JOIN LATERAL (SELECT job.id AS id
    FROM job
    WHERE job.id = late.id
    AND job.changed_xid = late.xid
    AND CAST(job.status AS TEXT) = 'pending'
    AND job.scheduled_at <= now()
    AND job.type_name = ANY (%(types)s::TEXT[])
    AND job.attempt < 2147483647
    AND (job.expires_at IS NULL OR job.expires_at > now())
    AND (job.ordering_key IS NULL OR (SELECT other.id
        FROM job AS other
        WHERE other.ordering_key = job.ordering_key
        AND other.ordering_key IS NOT NULL
        AND other.leased_by IS NOT NULL
        LIMIT 1) IS NULL
      AND job.id = (SELECT first.id
        FROM job AS first
        WHERE first.ordering_key = job.ordering_key
        AND first.ordering_key IS NOT NULL
        AND first.status IN ('blocked', 'pending')
        AND NOT (coalesce(first.skip_while_retrying, false)
          AND first.status = 'pending'
          AND first.attempt > 0
          AND first.scheduled_at > now())
        ORDER BY first.ordering_key, first.created_at, first.id
        LIMIT 1))) AS taken ON true
  UNION ALL
  SELECT in_partition.id AS id
  FROM (SELECT row.quota AS quota, row.first AS first, row.last AS last, row.first_type AS first_type, row.last_type AS last_type, (%(types)s::TEXT[])[row.first_type:row.last_type] AS types
    FROM unnest(%(partition_quota)s::INTEGER[], %(partition_first)s::INTEGER[], %(partition_last)s::INTEGER[], %(partition_first_type)s::INTEGER[], %(partition_last_type)s::INTEGER[]) AS row(quota, first, last, first_type, last_type)
    LIMIT ALL OFFSET 0) AS partition
  JOIN LATERAL (SELECT in_segment.id AS id
    FROM unnest((%(segment_first)s::INTEGER[])[partition.first:partition.last], (%(segment_last)s::INTEGER[])[partition.first:partition.last], (%(segment_quota)s::INTEGER[])[partition.first:partition.last]) AS segment(first, last, quota)
    JOIN LATERAL (SELECT probe.id AS id
      FROM unnest((%(queues)s::TEXT[])[segment.first:segment.last], (%(fairness_keys)s::TEXT[])[segment.first:segment.last], (%(priorities)s::SMALLINT[])[segment.first:segment.last], (%(cursor_at)s::TIMESTAMP WITH TIME ZONE[])[segment.first:segment.last], (%(cursor_id)s::UUID[])[segment.first:segment.last]) AS lane(queue, fairness_key, priority, cursor_at, cursor_id)
      JOIN LATERAL (SELECT job.id AS id
        FROM job
        WHERE job.status = 'pending'
        AND job.priority >= '-9'
        AND job.queue = lane.queue
        AND job.fairness_key = lane.fairness_key
        AND job.priority = lane.priority
        AND job.scheduled_at <= now()
        AND job.type_name = ANY (partition.types)
        AND job.attempt < 2147483647
        AND (job.expires_at IS NULL OR job.expires_at > now())
        AND (job.ordering_key IS NULL OR (SELECT other.id
            FROM job AS other
            WHERE other.ordering_key = job.ordering_key
            AND other.ordering_key IS NOT NULL
            AND other.leased_by IS NOT NULL
            LIMIT 1) IS NULL
          AND job.id = (SELECT first.id
            FROM job AS first
            WHERE first.ordering_key = job.ordering_key
            AND first.ordering_key IS NOT NULL
            AND first.status IN ('blocked', 'pending')
            AND NOT (coalesce(first.skip_while_retrying, false)
              AND first.status = 'pending'
              AND first.attempt > 0
              AND first.scheduled_at > now())
            ORDER BY first.ordering_key, first.created_at, first.id
            LIMIT 1))
        AND (job.scheduled_at, job.id) > (lane.cursor_at, lane.cursor_id)
        AND job.id != ALL (%(apart)s::UUID[])
        ORDER BY job.scheduled_at, job.id
        LIMIT partition.quota) AS probe ON true
      LIMIT segment.quota) AS in_segment ON true
    LIMIT partition.quota) AS in_partition ON true
  LIMIT %(limit)s::INTEGER)
SELECT now() AS now, read.changed_xid, read.id, read.type_name, read.queue, read.fairness_key, read.priority, read.chain_id, read.chain_index, read.created_at, read.scheduled_at, read.attempt, read.deduplication_key, read.ordering_key, read.input
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT CAST(job.changed_xid AS TEXT) AS changed_xid, job.id AS id, job.type_name AS type_name, job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.chain_id AS chain_id, job.chain_index AS chain_index, least(greatest(job.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS created_at, job.scheduled_at AS scheduled_at, job.attempt AS attempt, job.deduplication_key AS deduplication_key, job.ordering_key AS ordering_key, job.input AS input
  FROM job
  WHERE job.id = ANY (array((SELECT picked.id
        FROM picked)))) AS read ON true

-- catch_up {}
WITH seen AS (SELECT in_flight.id AS id, in_flight.queue AS queue, in_flight.fairness_key AS fairness_key, in_flight.priority AS priority, in_flight.type_name AS type_name, in_flight.scheduled_at AS scheduled_at, in_flight.changed_xid AS changed_xid
  FROM unnest(CAST(%(xip)s::TEXT[] AS xid8[])) AS "then"(xid)
  JOIN LATERAL (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.type_name AS type_name, job.scheduled_at AS scheduled_at, job.changed_xid AS changed_xid
    FROM job
    WHERE job.status = 'pending'
    AND job.changed_xid > '0'
    AND job.changed_xid >= "then".xid
    AND job.changed_xid <= "then".xid
    ORDER BY job.changed_xid) AS in_flight ON true
  UNION ALL
  SELECT since.id AS id, since.queue AS queue, since.fairness_key AS fairness_key, since.priority AS priority, since.type_name AS type_name, since.scheduled_at AS scheduled_at, since.changed_xid AS changed_xid
  FROM (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.type_name AS type_name, job.scheduled_at AS scheduled_at, job.changed_xid AS changed_xid
    FROM job
    WHERE job.status = 'pending'
    AND job.changed_xid > '0'
    AND job.changed_xid >= CAST(%(xmax)s::VARCHAR AS xid8)
    ORDER BY job.changed_xid) AS since
  UNION ALL
  SELECT freed.id AS id, freed.queue AS queue, freed.fairness_key AS fairness_key, freed.priority AS priority, freed.type_name AS type_name, freed.scheduled_at AS scheduled_at, freed.changed_xid AS changed_xid
  FROM (SELECT first.id AS id, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.type_name AS type_name, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
    FROM (SELECT DISTINCT keys.ordering_key AS ordering_key
      FROM (SELECT of_then.ordering_key AS ordering_key
        FROM unnest(CAST(%(xip)s::TEXT[] AS xid8[])) AS "then"(xid)
        JOIN LATERAL (SELECT left_key.ordering_key AS ordering_key
          FROM job AS left_key
          WHERE left_key.ordering_key IS NOT NULL
          AND left_key.leased_by IS NULL
          AND (left_key.completed_at IS NOT NULL OR left_key.started_at IS NOT NULL)
          AND left_key.changed_xid >= "then".xid
          AND left_key.changed_xid <= "then".xid) AS of_then ON true
        UNION ALL
        SELECT left_key.ordering_key AS ordering_key
        FROM job AS left_key
        WHERE left_key.ordering_key IS NOT NULL
        AND left_key.leased_by IS NULL
        AND (left_key.completed_at IS NOT NULL OR left_key.started_at IS NOT NULL)
        AND left_key.changed_xid >= CAST(%(xmax)s::VARCHAR AS xid8)
        AND left_key.changed_xid < pg_snapshot_xmax(pg_current_snapshot())) AS keys) AS key
    JOIN LATERAL (SELECT first.id AS id, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.type_name AS type_name, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
      FROM job AS first
      WHERE first.ordering_key = key.ordering_key
      AND first.ordering_key IS NOT NULL
      AND first.status IN ('blocked', 'pending')
      AND NOT (coalesce(first.skip_while_retrying, false)
        AND first.status = 'pending'
        AND first.attempt > 0
        AND first.scheduled_at > now())
      ORDER BY first.ordering_key, first.created_at, first.id
      LIMIT 1) AS first ON true
    WHERE first.status = 'pending') AS freed
  LIMIT %(most)s::INTEGER)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, (SELECT count(*) >= %(most)s::INTEGER AS anon_1
  FROM seen) AS is_cut, found.id, found.queue, found.fairness_key, found.priority, found.type_name, found.scheduled_at, CAST(found.changed_xid AS TEXT) AS changed_xid, CAST(EXTRACT(epoch
    FROM found.scheduled_at - now()) AS DOUBLE PRECISION) AS wait
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT seen.id AS id, seen.queue AS queue, seen.fairness_key AS fairness_key, seen.priority AS priority, seen.type_name AS type_name, seen.scheduled_at AS scheduled_at, seen.changed_xid AS changed_xid
  FROM seen
  WHERE seen.queue = ANY (%(queues)s::TEXT[])
  AND seen.type_name = ANY (%(types)s::TEXT[])
  AND NOT (EXISTS (SELECT 1
      FROM unnest(%(known_queues)s::TEXT[], %(known_fairness_keys)s::TEXT[], %(known_priorities)s::SMALLINT[], %(known_types)s::TEXT[], %(known_at)s::TIMESTAMP WITH TIME ZONE[], %(known_id)s::UUID[]) AS known(queue, fairness_key, priority, type_name, at, id)
      WHERE seen.queue = known.queue
      AND seen.fairness_key = known.fairness_key
      AND seen.priority = known.priority
      AND (seen.type_name = known.type_name OR known.type_name = ''
        AND seen.type_name = ANY (%(shared_types)s::TEXT[]))
      AND (seen.scheduled_at, seen.id) > (known.at, known.id)))
  UNION ALL
  SELECT CAST(NULL AS UUID) AS anon_2, ended.queue AS queue, ended.fairness_key AS fairness_key, ended.priority AS priority, ended.type_name AS type_name, following.scheduled_at AS scheduled_at, CAST(NULL AS xid8) AS anon__1
  FROM unnest(%(ended_queues)s::TEXT[], %(ended_fairness_keys)s::TEXT[], %(ended_priorities)s::SMALLINT[], %(ended_types)s::TEXT[]) AS ended(queue, fairness_key, priority, type_name)
  JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = ended.queue
    AND job.fairness_key = ended.fairness_key
    AND job.priority = ended.priority
    AND job.scheduled_at >= %(read_to)s::TIMESTAMP WITH TIME ZONE
    AND (job.type_name = ended.type_name OR ended.type_name = ''
      AND job.type_name = ANY (%(shared_types)s::TEXT[]))
    ORDER BY job.scheduled_at, job.id
    LIMIT 1) AS following ON true) AS found ON true

-- chain_complete {"chain_index_1": 0}
WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(locks)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), ended AS (UPDATE job
  SET output=CAST((%(outputs)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER
    AND NOT false) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT free.id
        FROM free)))
  AND job.chain_id = ANY (array((SELECT free.id
        FROM free)))
  AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
  AND job.leased_by = %(worker_id)s::VARCHAR
  AND CAST(job.status AS TEXT) = 'running'
  RETURNING job.id, job.chain_id, job.status, job.has_waiters, false AS continues), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT ended.status
          FROM ended
          WHERE ended.chain_id != ended.id
          AND NOT ended.continues)))[array_position(array((SELECT ended.chain_id
          FROM ended
          WHERE ended.chain_id != ended.id
          AND NOT ended.continues)), job.id)])
  WHERE job.id = ANY (array((SELECT ended.chain_id
        FROM ended
        WHERE ended.chain_id != ended.id
        AND NOT ended.continues)))
  RETURNING job.id, job.has_waiters)
SELECT ended.id, CASE WHEN (NOT ended.continues) THEN ended.status END AS status, ended.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = ended.chain_id), ended.has_waiters) AS has_waiters
FROM ended

-- chain_complete_going_on {"chain_index_1": 0, "coalesce_1": false}
WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(locks)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), ended AS (UPDATE job
  SET output=CAST((%(outputs)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER
    AND NOT coalesce(job.id = ANY (%(parents)s::UUID[]), %(coalesce_1)s)) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT free.id
        FROM free)))
  AND job.chain_id = ANY (array((SELECT free.id
        FROM free)))
  AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
  AND job.leased_by = %(worker_id)s::VARCHAR
  AND CAST(job.status AS TEXT) = 'running'
  RETURNING job.id, job.chain_id, job.status, job.has_waiters, coalesce(job.id = ANY (%(parents)s::UUID[]), %(coalesce_1)s) AS continues), inserted AS (INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name, input, scheduled_at)
  SELECT given.id AS id, given.chain_id AS chain_id, given.chain_index AS chain_index, given.type_name AS type_name, given.chain_type_name AS chain_type_name, CAST(given.input AS JSONB) AS input, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
  FROM unnest(%(parents)s::UUID[], %(next_id)s::UUID[], %(next_chain_id)s::UUID[], %(next_chain_index)s::INTEGER[], %(next_type_name)s::TEXT[], %(next_chain_type_name)s::TEXT[], %(next_input)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(parent, id, chain_id, chain_index, type_name, chain_type_name, input, delay, at)
  WHERE given.parent = ANY (array((SELECT ended.id
        FROM ended)))
  RETURNING job.id), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT ended.status
          FROM ended
          WHERE ended.chain_id != ended.id
          AND NOT ended.continues)))[array_position(array((SELECT ended.chain_id
          FROM ended
          WHERE ended.chain_id != ended.id
          AND NOT ended.continues)), job.id)])
  WHERE job.id = ANY (array((SELECT ended.chain_id
        FROM ended
        WHERE ended.chain_id != ended.id
        AND NOT ended.continues)))
  RETURNING job.id, job.has_waiters)
SELECT ended.id, CASE WHEN NOT ended.continues THEN ended.status END AS status, ended.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = ended.chain_id), ended.has_waiters) AS has_waiters
FROM ended

-- chain_edges {}
(SELECT job_blocker.blocked_by_chain_id, job.chain_id, job_blocker.is_resolved
  FROM job_blocker
  JOIN job ON job.id = job_blocker.job_id
  WHERE job_blocker.job_id = ANY (%(ids)s::UUID[])
  LIMIT %(limit)s::INTEGER)
UNION ALL (SELECT job_blocker.blocked_by_chain_id, job.chain_id, job_blocker.is_resolved
  FROM job_blocker
  JOIN job ON job.id = job_blocker.job_id
  WHERE job.root_id = ANY (%(ids)s::UUID[])
  LIMIT %(limit)s::INTEGER)
UNION ALL (SELECT job_blocker.blocked_by_chain_id, job.chain_id, job_blocker.is_resolved
  FROM job_blocker
  JOIN job ON job.id = job_blocker.job_id
  WHERE job_blocker.blocked_by_chain_id = ANY (%(ids)s::UUID[])
  LIMIT %(limit)s::INTEGER)

-- chain_end {}
UPDATE job
SET chain_completed_at=now(), chain_status='completed'
WHERE job.id = %(root)s::UUID
RETURNING job.has_waiters

-- chain_last_job {}
SELECT job.id, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM job
WHERE job.id = coalesce((SELECT job.id
    FROM job
    WHERE job.root_id = %(chain_id)s::UUID
    ORDER BY job.chain_index DESC
    LIMIT 1), %(chain_id)s::UUID)
FOR NO KEY UPDATE OF job

-- chain_lock {}
SELECT job.id, job.chain_id, job.type_name, job.status, job.has_waiters, job.chain_completed_at IS NOT NULL AS ended, coalesce(job.chain_status, job.status) AS outcome
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE

-- chain_of {}
SELECT job.id, job.chain_id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])

-- chain_state {}
SELECT job_chain.id, job_chain.type_name, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, root.has_waiters
FROM job_chain
JOIN job AS root ON root.id = job_chain.id
WHERE job_chain.id = (SELECT asked.chain_id
  FROM job AS asked
  WHERE asked.id = %(job_id)s::UUID)

-- chains_to_unblock {"after": "00000000-0000-0000-0000-000000000000"}
SELECT job.id
FROM job
WHERE job.has_waiters
AND job.chain_completed_at IS NOT NULL
AND job.id > %(after)s::UUID
ORDER BY job.id
LIMIT %(limit)s::INTEGER

-- change {"param_1": ["00000000-0000-0000-0000-000000000000"], "status": "cancelled"}
UPDATE job_queue
SET status=%(status)s
WHERE job_queue.id = ANY (%(param_1)s::UUID[])

-- claim {"attempt_1": 1}
WITH picked AS (SELECT taken.id AS id
  FROM unnest(%(late_ids)s::UUID[], CAST(%(late_xids)s::TEXT[] AS xid8[])) AS late(id, xid)
  JOIN LATERAL (SELECT job.id AS id
    FROM job
    WHERE job.id = late.id
    AND job.changed_xid = late.xid
    AND CAST(job.status AS TEXT) = 'pending'
    AND job.scheduled_at <= now()
    AND job.type_name = ANY (%(types)s::TEXT[])
    AND job.attempt < 2147483647
    AND (job.expires_at IS NULL OR job.expires_at > now())
    AND (job.ordering_key IS NULL OR (SELECT other.id
        FROM job AS other
        WHERE other.ordering_key = job.ordering_key
        AND other.ordering_key IS NOT NULL
        AND other.leased_by IS NOT NULL
        LIMIT 1) IS NULL
      AND job.id = (SELECT first.id
        FROM job AS first
        WHERE first.ordering_key = job.ordering_key
        AND first.ordering_key IS NOT NULL
        AND first.status IN ('blocked', 'pending')
        AND NOT (coalesce(first.skip_while_retrying, false)
          AND first.status = 'pending'
          AND first.attempt > 0
          AND first.scheduled_at > now())
        ORDER BY first.ordering_key, first.created_at, first.id
        LIMIT 1))
    FOR NO KEY UPDATE SKIP LOCKED) AS taken ON true
  UNION ALL
  SELECT in_partition.id AS id
  FROM (SELECT row.quota AS quota, row.first AS first, row.last AS last, row.first_type AS first_type, row.last_type AS last_type, (%(types)s::TEXT[])[row.first_type:row.last_type] AS types
    FROM unnest(%(partition_quota)s::INTEGER[], %(partition_first)s::INTEGER[], %(partition_last)s::INTEGER[], %(partition_first_type)s::INTEGER[], %(partition_last_type)s::INTEGER[]) AS row(quota, first, last, first_type, last_type)
    LIMIT ALL OFFSET 0) AS partition
  JOIN LATERAL (SELECT in_segment.id AS id
    FROM unnest((%(segment_first)s::INTEGER[])[partition.first:partition.last], (%(segment_last)s::INTEGER[])[partition.first:partition.last], (%(segment_quota)s::INTEGER[])[partition.first:partition.last]) AS segment(first, last, quota)
    JOIN LATERAL (SELECT probe.id AS id
      FROM unnest((%(queues)s::TEXT[])[segment.first:segment.last], (%(fairness_keys)s::TEXT[])[segment.first:segment.last], (%(priorities)s::SMALLINT[])[segment.first:segment.last], (%(cursor_at)s::TIMESTAMP WITH TIME ZONE[])[segment.first:segment.last], (%(cursor_id)s::UUID[])[segment.first:segment.last]) AS lane(queue, fairness_key, priority, cursor_at, cursor_id)
      JOIN LATERAL (SELECT job.id AS id
        FROM job
        WHERE job.status = 'pending'
        AND job.priority >= '-9'
        AND job.queue = lane.queue
        AND job.fairness_key = lane.fairness_key
        AND job.priority = lane.priority
        AND job.scheduled_at <= now()
        AND job.type_name = ANY (partition.types)
        AND job.attempt < 2147483647
        AND (job.expires_at IS NULL OR job.expires_at > now())
        AND (job.ordering_key IS NULL OR (SELECT other.id
            FROM job AS other
            WHERE other.ordering_key = job.ordering_key
            AND other.ordering_key IS NOT NULL
            AND other.leased_by IS NOT NULL
            LIMIT 1) IS NULL
          AND job.id = (SELECT first.id
            FROM job AS first
            WHERE first.ordering_key = job.ordering_key
            AND first.ordering_key IS NOT NULL
            AND first.status IN ('blocked', 'pending')
            AND NOT (coalesce(first.skip_while_retrying, false)
              AND first.status = 'pending'
              AND first.attempt > 0
              AND first.scheduled_at > now())
            ORDER BY first.ordering_key, first.created_at, first.id
            LIMIT 1))
        AND (job.scheduled_at, job.id) > (lane.cursor_at, lane.cursor_id)
        AND job.id != ALL (%(apart)s::UUID[])
        ORDER BY job.scheduled_at, job.id
        LIMIT partition.quota
        FOR NO KEY UPDATE SKIP LOCKED) AS probe ON true
      LIMIT segment.quota) AS in_segment ON true
    LIMIT partition.quota) AS in_partition ON true
  LIMIT %(limit)s::INTEGER), claimed AS (UPDATE job
  SET status='running', started_at=now(), attempt=(job.attempt + %(attempt_1)s::INTEGER), leased_by=%(worker_id)s::VARCHAR, leased_until=(now() + job.timeout + %(grace)s::INTERVAL), changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT picked.id
        FROM picked)))
  RETURNING job.id, job.type_name, job.queue, job.fairness_key, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.input, job.input_version, job.attempt, job.max_attempts, job.timeout, least(greatest(job.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS created_at, job.scheduled_at, job.started_at, job.trace_context, job.chain_trace_context, job.ordering_key, job.rate_cost, CASE WHEN (job.attempt > 1
    AND pg_column_size(job.last_error) <= 131072) THEN job.last_error END AS last_error, CASE WHEN (job.attempt > 1) THEN (SELECT least(greatest(job_attempt.ended_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS least_1
    FROM job_attempt
    WHERE job_attempt.job_id = job.id
    AND job_attempt.attempt = job.attempt - 1) END AS last_attempt_ended_at)
SELECT now() AS now, claimed.id, claimed.type_name, claimed.queue, claimed.fairness_key, claimed.priority, claimed.chain_id, claimed.chain_type_name, claimed.chain_index, claimed.input, claimed.input_version, claimed.attempt, claimed.max_attempts, claimed.timeout, claimed.created_at, claimed.scheduled_at, claimed.started_at, claimed.trace_context, claimed.chain_trace_context, claimed.ordering_key, claimed.rate_cost, claimed.last_error, claimed.last_attempt_ended_at
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN claimed ON true

-- clear_waiters {"has_waiters": false, "pg_notify_2": ".job:ended"}
UPDATE job
SET has_waiters=%(has_waiters)s
WHERE job.id = ANY (%(ids)s::UUID[])
RETURNING pg_notify(%(pg_notify_2)s::VARCHAR, CAST(job.id AS TEXT)) AS pg_notify_1

-- complete {"chain_index_1": 0}
WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(ids)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED)
UPDATE job
SET output=CAST((%(outputs)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT free.id
      FROM free)))
AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
RETURNING job.id, job.has_waiters

-- complete_in_session {"chain_index_1": 0}
WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(ids)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED)
UPDATE job
SET output=CAST((%(outputs)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT free.id
      FROM free)))
AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
RETURNING job.id, job.has_waiters, current_setting('application_name') AS session_name

-- complete_one {"chain_index_1": 0}
UPDATE job
SET output=CAST(%(job_output)s::VARCHAR AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
WHERE job.id = %(job_id)s::UUID
AND job.attempt = %(job_attempt)s::INTEGER
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
RETURNING job.id, job.has_waiters, current_setting('application_name') AS session_name

-- complete_one_going_on {}
UPDATE job
SET output=CAST(%(job_output)s::VARCHAR AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, changed_xid=pg_current_xact_id()
WHERE job.id = %(job_id)s::UUID
AND job.attempt = %(job_attempt)s::INTEGER
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
RETURNING job.id, job.has_waiters, current_setting('application_name') AS session_name

-- complete_unclaimed {"chain_index_1": 0}
UPDATE job
SET output=CAST(%(job_output)s::VARCHAR AS JSONB), status='completed', completed_at=now(), completed_by=NULL, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
WHERE job.id = %(job_id)s::UUID
RETURNING job.has_waiters

-- connected {}
WITH RECURSIVE chain(id) AS (SELECT job.id AS id
  FROM job
  WHERE job.id = ANY (%(ids)s::UUID[]) UNION
  SELECT blocker.id AS id
  FROM chain
  JOIN LATERAL (SELECT job_blocker.blocked_by_chain_id AS id
    FROM job_blocker
    WHERE job_blocker.job_id = chain.id
    UNION ALL
    SELECT job_blocker.blocked_by_chain_id AS id
    FROM job
    JOIN job_blocker ON job_blocker.job_id = job.id
    WHERE job.root_id = chain.id) AS blocker ON true)
SELECT chain.id
FROM chain

-- continuations {}
SELECT job.id, job.chain_id
FROM job
WHERE job.root_id = ANY (%(ids)s::UUID[])
ORDER BY job.id

-- correct_heartbeats {}
WITH ahead AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.heartbeat_at > now() + %(after)s::INTERVAL
  FOR UPDATE SKIP LOCKED)
UPDATE worker
SET heartbeat_at=now()
FROM ahead
WHERE worker.id = ahead.id
RETURNING worker.id

-- correct_leases {}
UPDATE job
SET started_at=now(), leased_until=(now() + (job.leased_until - job.started_at))
WHERE job.id = ANY (array((SELECT ahead.id
      FROM job AS ahead
      WHERE ahead.status = 'running'
      AND ahead.started_at > now() + %(after)s::INTERVAL
      LIMIT %(limit)s::INTEGER
      FOR NO KEY UPDATE SKIP LOCKED)))
RETURNING job.id

-- correct_schedule {}
UPDATE schedule
SET next_fire_at=%(next)s::TIMESTAMP WITH TIME ZONE
WHERE schedule.name = %(schedule)s::VARCHAR
AND CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END = %(was)s::TIMESTAMP WITH TIME ZONE

-- correct_transactions {}
UPDATE job
SET changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT ahead.id
      FROM job AS ahead
      WHERE ahead.status = 'pending'
      AND ahead.changed_xid > '0'
      AND ahead.changed_xid >= pg_snapshot_xmax(pg_current_snapshot())
      LIMIT %(limit)s::INTEGER
      FOR NO KEY UPDATE SKIP LOCKED)))
RETURNING job.id

-- count_continuations {"param_1": 1, "param_2": ["00000000-0000-0000-0000-000000000000"]}
SELECT coalesce(sum((SELECT job.chain_index
      FROM job
      WHERE job.root_id = chain.id
      ORDER BY job.chain_index DESC
      LIMIT %(param_1)s::INTEGER)), 0) AS coalesce_1
FROM unnest(%(param_2)s::UUID[]) AS chain(id)

-- current_jobs {}
SELECT coalesce((SELECT later.id
    FROM job AS later
    WHERE later.root_id = root.id
    ORDER BY later.chain_index DESC
    LIMIT 1), root.id) AS id, root.id AS chain_id
FROM job AS root
WHERE root.id = ANY (%(ids)s::UUID[])
AND root.root_id IS NULL
AND root.chain_completed_at IS NULL
ORDER BY root.id

-- dead_letter_groups {"array_agg_1": 1, "error_1": "type", "type_name_1_1": "test"}
SELECT dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint AS fingerprint, min(CAST(dead_letter.error ->> %(error_1)s::TEXT AS VARCHAR)) AS error_type, count(*) AS count, min(dead_letter.died_at) AS first_died_at, max(dead_letter.died_at) AS last_died_at, (array_agg(dead_letter.job_id))[%(array_agg_1)s::INTEGER] AS example_job_id
FROM dead_letter
WHERE dead_letter.type_name IN (%(type_name_1_1)s::VARCHAR)
GROUP BY dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint
ORDER BY count(*) DESC, dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint

-- dead_letter_jobs {"job_id_1": "00000000-0000-0000-0000-000000000000", "param_1": 50, "status_1": "dead"}
SELECT DISTINCT dead_letter.job_id
FROM dead_letter
WHERE dead_letter.resolution IS NULL
AND (EXISTS (SELECT *
    FROM job
    WHERE job.id = dead_letter.job_id
    AND job.status = %(status_1)s))
AND dead_letter.job_id > %(job_id_1)s::UUID
ORDER BY dead_letter.job_id
LIMIT %(param_1)s::INTEGER

-- dead_letter_page {"id_1": "00000000-0000-0000-0000-000000000000", "param_1": 50}
SELECT dead_letter.id, dead_letter.job_id, dead_letter.chain_id, dead_letter.queue, dead_letter.fairness_key, dead_letter.type_name, dead_letter.input, dead_letter.input_version, dead_letter.reason, dead_letter.error, dead_letter.error_fingerprint, dead_letter.attempts, dead_letter.died_at, dead_letter.resolution, dead_letter.resolved_at, dead_letter.resolved_by, dead_letter.changed_xid
FROM dead_letter
WHERE dead_letter.resolution IS NULL
AND dead_letter.id > %(id_1)s::UUID
ORDER BY dead_letter.id ASC
LIMIT %(param_1)s::INTEGER

-- dead_letters_unresolved {"id_1": "00000000-0000-0000-0000-000000000000", "param_1": 50, "type_name_1_1": "test"}
SELECT dead_letter.id
FROM dead_letter
WHERE dead_letter.resolution IS NULL
AND dead_letter.type_name IN (%(type_name_1_1)s::VARCHAR)
AND dead_letter.resolution IS NULL
AND dead_letter.id > %(id_1)s::UUID
ORDER BY dead_letter.id
LIMIT %(param_1)s::INTEGER
FOR UPDATE

-- delete_attempts {}
DELETE
FROM job_attempt
WHERE job_attempt.job_id = ANY (%(job_ids)s::UUID[])

-- delete_edges {}
DELETE
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(job_ids)s::UUID[])

-- delete_jobs {}
DELETE
FROM job
WHERE job.id = ANY (%(job_ids)s::UUID[])
RETURNING job.id, job.status, job.chain_id, job.has_waiters

-- dismiss {"param_1": ["00000000-0000-0000-0000-000000000000"], "resolution": "dismissed", "resolved_by": "me"}
UPDATE dead_letter
SET resolution=%(resolution)s::VARCHAR, resolved_at=now(), resolved_by=%(resolved_by)s::VARCHAR, changed_xid=pg_current_xact_id()
WHERE dead_letter.resolution IS NULL
AND dead_letter.id = ANY (%(param_1)s::UUID[])
RETURNING dead_letter.id

-- dismiss_dead_letters {"resolution": "dismissed"}
UPDATE dead_letter
SET resolution=%(resolution)s::VARCHAR, resolved_at=now(), resolved_by=coalesce(nullif(%(by)s::VARCHAR, ''), nullif(current_setting('sa_jobqueue.actor', true), ''), CAST(SESSION_USER AS TEXT)), changed_xid=pg_current_xact_id()
WHERE dead_letter.job_id = ANY (%(job_ids)s::UUID[])
AND dead_letter.resolution IS NULL

-- enqueue_many {}
INSERT INTO job (id, chain_id, type_name, chain_type_name, input, scheduled_at)
SELECT given.id, given.chain_id, given.type_name, given.chain_type_name, CAST(given.input AS JSONB) AS input, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
FROM unnest(%(id)s::UUID[], %(chain_id)s::UUID[], %(type_name)s::TEXT[], %(chain_type_name)s::TEXT[], %(input)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(id, chain_id, type_name, chain_type_name, input, delay, at)

-- expire {"chain_index_1": 0, "concat_1": "was to start by ", "concat_2": " and no worker was free by then", "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "Expired", "jsonb_build_object_3": "message"}
WITH late AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.status = 'pending'
  AND job.expires_at IS NOT NULL
  AND job.expires_at <= now()
  AND job.id != ALL (%(excluded)s::UUID[])
  ORDER BY job.expires_at
  LIMIT %(limit)s::INTEGER
  FOR NO KEY UPDATE SKIP LOCKED), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT late.root_id
        FROM late
        WHERE late.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), expired AS (UPDATE job
  SET status='cancelled', completed_at=now(), last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, concat(%(concat_1)s::VARCHAR, job.expires_at, %(concat_2)s::VARCHAR)), chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT late.id
        FROM late)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.type_name, job.attempt, job.chain_id, job.status, job.has_waiters), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT expired.status
          FROM expired
          WHERE expired.chain_id != expired.id)))[array_position(array((SELECT expired.chain_id
          FROM expired
          WHERE expired.chain_id != expired.id)), job.id)])
  WHERE job.id = ANY (array((SELECT expired.chain_id
        FROM expired
        WHERE expired.chain_id != expired.id)))
  RETURNING job.id, job.has_waiters)
SELECT expired.id, expired.type_name, expired.attempt, expired.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = expired.chain_id), expired.has_waiters) AS has_waiters
FROM expired

-- expire_only {"chain_index_1": 0, "concat_1": "was to start by ", "concat_2": " and no worker was free by then", "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "Expired", "jsonb_build_object_3": "message"}
WITH late AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.status = 'pending'
  AND job.expires_at IS NOT NULL
  AND job.expires_at <= now()
  AND job.id != ALL (%(excluded)s::UUID[])
  AND job.id = ANY (%(ids)s::UUID[])
  ORDER BY job.expires_at
  LIMIT %(limit)s::INTEGER
  FOR NO KEY UPDATE SKIP LOCKED), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT late.root_id
        FROM late
        WHERE late.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), expired AS (UPDATE job
  SET status='cancelled', completed_at=now(), last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, concat(%(concat_1)s::VARCHAR, job.expires_at, %(concat_2)s::VARCHAR)), chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT late.id
        FROM late)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.type_name, job.attempt, job.chain_id, job.status, job.has_waiters), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT expired.status
          FROM expired
          WHERE expired.chain_id != expired.id)))[array_position(array((SELECT expired.chain_id
          FROM expired
          WHERE expired.chain_id != expired.id)), job.id)])
  WHERE job.id = ANY (array((SELECT expired.chain_id
        FROM expired
        WHERE expired.chain_id != expired.id)))
  RETURNING job.id, job.has_waiters)
SELECT expired.id, expired.type_name, expired.attempt, expired.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = expired.chain_id), expired.has_waiters) AS has_waiters
FROM expired

-- explain_ahead {}
SELECT count(*) AS count_1
FROM (SELECT 1
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = %(queue)s::VARCHAR
  AND job.fairness_key = %(fairness_key)s::VARCHAR
  AND job.scheduled_at <= now()
  AND (job.priority > %(priority)s::INTEGER OR job.priority = %(priority)s::INTEGER
    AND (job.scheduled_at, job.id) < (%(scheduled_at)s::TIMESTAMP WITH TIME ZONE, %(id)s::UUID))
  LIMIT %(limit)s::INTEGER) AS before

-- explain_before_in_order {}
SELECT job.id, job.status
FROM job
WHERE job.id = coalesce((SELECT other.id
    FROM job AS other
    WHERE other.ordering_key = %(ordering_key)s::VARCHAR
    AND other.ordering_key IS NOT NULL
    AND other.leased_by IS NOT NULL
    LIMIT 1), (SELECT first.id
    FROM job AS first
    WHERE first.ordering_key = %(ordering_key)s::VARCHAR
    AND first.ordering_key IS NOT NULL
    AND first.status IN ('blocked', 'pending')
    AND NOT (coalesce(first.skip_while_retrying, false)
      AND first.status = 'pending'
      AND first.attempt > 0
      AND first.scheduled_at > now())
    ORDER BY first.ordering_key, first.created_at, first.id
    LIMIT 1))

-- explain_ended_lately {}
SELECT count(*) AS count_1, CAST(EXTRACT(epoch
    FROM now() - min(lately.completed_at)) AS DOUBLE PRECISION) AS anon_1
FROM (SELECT job.completed_at AS completed_at
  FROM job
  WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT) >> 6
  AND job.status = 'completed'
  AND job.queue = %(queue)s::VARCHAR
  AND job.fairness_key = %(fairness_key)s::VARCHAR
  AND job.completed_at > now() - %(window)s::INTERVAL
  LIMIT %(limit)s::INTEGER) AS lately

-- explain_holders {"param_1": 1}
SELECT job.leased_by AS worker_id, count(*) AS n, (array_agg(job.id
    ORDER BY job.started_at))[%(param_1)s::INTEGER] AS job_id, min(job.started_at) AS started_at
FROM job
WHERE job.status = 'running'
AND (%(queue)s::VARCHAR IS NULL OR job.queue = %(queue)s::VARCHAR)
AND (%(fairness_key)s::VARCHAR IS NULL OR job.fairness_key = %(fairness_key)s::VARCHAR)
AND (%(type_name)s::VARCHAR IS NULL OR job.type_name = %(type_name)s::VARCHAR)
GROUP BY job.leased_by
ORDER BY min(job.started_at)

-- explain_rates {}
SELECT found.what, found.name, found.fairness_key, found.now, found.rate_limit, found.rate_period, found.rate_burst, found.rate_algorithm, found.tokens, found.starts, found.spent_at
FROM (SELECT 'queue' AS what, queue.name AS name, queue.fairness_key AS fairness_key, now() AS now, queue.rate_limit AS rate_limit, queue.rate_period AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at
  FROM queue
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE queue.rate_limit IS NOT NULL
    AND state.is_type = false
    AND state.name = queue.name
    AND state.fairness_key = queue.fairness_key
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE queue.name = %(queue)s::VARCHAR
  AND queue.fairness_key = ANY (%(fairness_keys)s::TEXT[])
  AND queue.rate_limit IS NOT NULL
  UNION ALL
  SELECT 'type' AS what, job_type.type_name AS name, '' AS fairness_key, now() AS now, job_type.rate_limit AS rate_limit, job_type.rate_period AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at
  FROM job_type
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE job_type.rate_limit IS NOT NULL
    AND state.is_type = true
    AND state.name = job_type.type_name
    AND state.fairness_key = ''
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE job_type.type_name = %(type_name)s::VARCHAR
  AND job_type.rate_limit IS NOT NULL) AS found
ORDER BY found.what, found.name, found.fairness_key

-- explain_waited_for {}
SELECT root.id AS chain_id, CASE WHEN (root.chain_completed_at IS NOT NULL) THEN coalesce(root.chain_status, root.status) END AS outcome, coalesce((SELECT later.id
    FROM job AS later
    WHERE later.root_id = root.id
    ORDER BY later.chain_index DESC
    LIMIT 1), root.id) AS last_job_id
FROM job_blocker
JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
WHERE job_blocker.job_id = %(job_id)s::UUID
AND NOT job_blocker.is_resolved
ORDER BY root.chain_completed_at IS NULL, job_blocker.index
LIMIT %(limit)s::INTEGER

-- extend {}
UPDATE job
SET leased_until=(now() + %(extension)s::INTERVAL + %(grace)s::INTERVAL)
WHERE job.id = %(job_id)s::UUID
AND job.attempt = %(job_attempt)s::INTEGER
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
RETURNING job.id

-- finish {"chain_index_1": 0, "make_interval_1": 0, "make_interval_2": 0, "make_interval_3": 0, "make_interval_4": 0, "make_interval_5": 0, "make_interval_6": 0, "param_1": "pending", "param_2": "pending", "param_3": "pending", "param_4": "dead", "param_5": "pending"}
WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(locks)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), ended AS (UPDATE job
  SET status=CAST((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS job_status), scheduled_at=CASE WHEN ((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] = %(param_1)s::VARCHAR) THEN greatest((%(ats)s::TIMESTAMP WITH TIME ZONE[])[array_position(%(ids)s::UUID[], job.id)], now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, (%(delays)s::DOUBLE PRECISION[])[array_position(%(ids)s::UUID[], job.id)])) ELSE job.scheduled_at END, completed_at=CASE WHEN ((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] != %(param_2)s::VARCHAR) THEN now() END, max_attempts=(least(job.max_attempts, 2147483647 - (%(uncounted)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]) + (%(uncounted)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]), last_error=coalesce(CAST((%(errors)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), job.last_error), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN ((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] != %(param_3)s::VARCHAR
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT free.id
        FROM free)))
  AND job.chain_id = ANY (array((SELECT free.id
        FROM free)))
  AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
  AND job.leased_by = %(worker_id)s::VARCHAR
  AND CAST(job.status AS TEXT) = 'running'
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.has_waiters), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT ended.id AS id, ended.attempt AS attempt, %(worker_id)s::VARCHAR AS anon_1, ended.started_at AS started_at, (%(outcomes)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_2, CAST((%(errors)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS JSONB) AS anon_3, (%(fingerprints)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_4
  FROM ended
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_5, ended.id AS id, ended.chain_id AS chain_id, ended.queue AS queue, ended.fairness_key AS fairness_key, ended.type_name AS type_name, ended.input AS input, ended.input_version AS input_version, (%(reasons)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_6, CAST((%(errors)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS JSONB) AS anon_3, (%(fingerprints)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_4, ended.attempt AS attempt
  FROM ended
  WHERE (%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] = %(param_4)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT ended.status
          FROM ended
          WHERE ended.chain_id != ended.id
          AND CAST(ended.status AS TEXT) != %(param_5)s::VARCHAR)))[array_position(array((SELECT ended.chain_id
          FROM ended
          WHERE ended.chain_id != ended.id
          AND CAST(ended.status AS TEXT) != %(param_5)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT ended.chain_id
        FROM ended
        WHERE ended.chain_id != ended.id
        AND CAST(ended.status AS TEXT) != %(param_5)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT ended.id, ended.status, ended.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = ended.chain_id), ended.has_waiters) AS has_waiters
FROM ended

-- forget_dead_workers {}
WITH dead AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.heartbeat_at < now() - %(after)s::INTERVAL
  AND NOT (EXISTS (SELECT 1
      FROM job
      WHERE job.status = 'running'
      AND job.leased_by = worker.id
      LIMIT ALL OFFSET 0))
  FOR UPDATE SKIP LOCKED)
DELETE
FROM worker USING dead
WHERE worker.id = dead.id

-- forget_worker {}
DELETE
FROM worker
WHERE worker.id = %(worker_id)s::VARCHAR
AND NOT (EXISTS (SELECT 1
    FROM job
    WHERE job.status = 'running'
    AND job.leased_by = worker.id
    LIMIT ALL OFFSET 0))

-- full_scan {}
WITH RECURSIVE lane(queue, fairness_key, priority, scheduled_at) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (%(after_queue)s::VARCHAR, %(after_fairness_key)s::VARCHAR, %(after_priority)s::SMALLINT)
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority, following.scheduled_at AS scheduled_at
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, lane.priority)
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS following ON true)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, found.queue, found.fairness_key, found.priority, found.scheduled_at, found.wait
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority, lane.scheduled_at AS scheduled_at, CAST(EXTRACT(epoch
      FROM lane.scheduled_at - now()) AS DOUBLE PRECISION) AS wait
  FROM lane
  LIMIT %(most)s::INTEGER) AS found ON true

-- give_up_begun {}
UPDATE job
SET deduplication_key=NULL
FROM unnest(%(type_names)s::TEXT[], %(keys)s::TEXT[]) AS given(type_name, key)
WHERE job.chain_type_name = given.type_name
AND job.deduplication_key = given.key
AND job.deduplication_key IS NOT NULL
AND job.chain_index = 0
AND job.chain_completed_at IS NULL
AND (job.status NOT IN ('pending', 'blocked'))

-- health_attempts_lately {}
SELECT seen.outcome, count(*) AS n
FROM (SELECT job_attempt.outcome AS outcome
  FROM job_attempt
  WHERE job_attempt.changed_xid >= CAST(CAST(greatest(CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT, 0) AS TEXT) AS xid8)
  AND job_attempt.ended_at > now() - %(window)s::INTERVAL
  LIMIT %(limit)s::INTEGER) AS seen
GROUP BY seen.outcome
ORDER BY seen.outcome

-- health_behind_dead {"array_agg_1": 1}
SELECT count(DISTINCT waiting.job_id) AS waiting, count(DISTINCT waiting.blocked_by_chain_id) AS chains, (array_agg(waiting.blocked_by_chain_id))[%(array_agg_1)s::INTEGER] AS chain_id
FROM (SELECT job_blocker.job_id AS job_id, job_blocker.blocked_by_chain_id AS blocked_by_chain_id
  FROM job_blocker
  WHERE job_blocker.blocked_by_chain_id = ANY (array((SELECT job.chain_id
        FROM job
        WHERE job.id = ANY (array((SELECT dead_letter.job_id
              FROM dead_letter
              WHERE dead_letter.resolution IS DISTINCT
              FROM 'redriven'
              ORDER BY dead_letter.id DESC
              LIMIT %(limit)s::INTEGER)))
        AND CAST(job.status AS TEXT) = 'dead')))
  AND NOT job_blocker.is_resolved
  LIMIT %(limit)s::INTEGER) AS waiting

-- health_chains_to_unblock {}
SELECT count(*) AS chains_to_unblock, min(found.chain_completed_at) AS oldest_at
FROM (SELECT job.chain_completed_at AS chain_completed_at
  FROM job
  WHERE job.has_waiters
  AND job.chain_completed_at IS NOT NULL
  LIMIT %(limit)s::INTEGER) AS found

-- health_depths {}
WITH RECURSIVE lane(queue, fairness_key, priority) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue, job.fairness_key, job.priority
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, lane.priority)
    ORDER BY job.queue, job.fairness_key, job.priority
    LIMIT 1) AS following ON true)
SELECT lane.queue, coalesce(paused.fairness_key, '') AS fairness_key, CAST(sum(due.n) AS BIGINT) AS due, min(due.first_at) AS oldest_at, CAST(sum(later.n) AS BIGINT) AS later, min(later.first_at) AS next_at, bool_or(greatest(due.n, later.n) >= %(limit)s::INTEGER) AS is_capped
FROM lane
JOIN LATERAL (SELECT count(*) AS n, min(due_jobs.scheduled_at) AS first_at
  FROM (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at <= now()
    ORDER BY job.scheduled_at, job.id
    LIMIT %(limit)s::INTEGER) AS due_jobs) AS due ON true
JOIN LATERAL (SELECT count(*) AS n, min(later_jobs.scheduled_at) AS first_at
  FROM (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at > now()
    ORDER BY job.scheduled_at, job.id
    LIMIT %(limit)s::INTEGER) AS later_jobs) AS later ON true
LEFT OUTER JOIN (SELECT queue.name AS name, queue.fairness_key AS fairness_key
  FROM queue
  WHERE queue.paused_at IS NOT NULL
  AND queue.fairness_key != '') AS paused ON paused.name = lane.queue
AND paused.fairness_key = lane.fairness_key
GROUP BY lane.queue, coalesce(paused.fairness_key, '')
ORDER BY lane.queue, fairness_key

-- health_due_lanes {}
WITH RECURSIVE lane(queue, fairness_key, priority) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue, job.fairness_key, job.priority
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, lane.priority)
    ORDER BY job.queue, job.fairness_key, job.priority
    LIMIT 1) AS following ON true)
SELECT lanes.queue, lanes.fairness_key, CAST(now() - min(oldest.scheduled_at) AS INTERVAL) AS waiting_for
FROM (SELECT lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority
  FROM lane
  LIMIT %(limit)s::INTEGER) AS lanes
JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = lanes.queue
  AND job.fairness_key = lanes.fairness_key
  AND job.priority = lanes.priority
  AND job.scheduled_at <= now()
  ORDER BY job.scheduled_at, job.id
  LIMIT 1) AS oldest ON true
GROUP BY lanes.queue, lanes.fairness_key

-- health_lately {}
SELECT seen.queue, count(*) AS examined, count(*) FILTER (WHERE seen.created_at > now() - %(window)s::INTERVAL) AS arrived, count(*) FILTER (WHERE seen.status = 'completed'
  AND seen.completed_at > now() - %(window)s::INTERVAL) AS completed, count(*) FILTER (WHERE seen.status = 'dead'
  AND seen.completed_at > now() - %(window)s::INTERVAL) AS dead, count(*) FILTER (WHERE seen.status = 'cancelled'
  AND seen.completed_at > now() - %(window)s::INTERVAL) AS cancelled
FROM (SELECT job.queue AS queue, job.status AS status, job.created_at AS created_at, job.completed_at AS completed_at
  FROM job
  WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT) >> 6
  AND (job.created_at > now() - %(window)s::INTERVAL OR job.completed_at > now() - %(window)s::INTERVAL)
  LIMIT %(limit)s::INTEGER) AS seen
GROUP BY seen.queue
ORDER BY seen.queue

-- health_rejected_rows {}
SELECT (SELECT count(*) AS count_1
  FROM (SELECT job_bulk_reject.write_id AS write_id
    FROM job_bulk_reject
    LIMIT %(limit)s::INTEGER) AS kept) AS rejected, (SELECT count(*) AS count_2
  FROM (SELECT job_bulk_reject.write_id AS write_id
    FROM job_bulk_write
    JOIN job_bulk_reject ON job_bulk_reject.write_id = job_bulk_write.write_id
    AND job_bulk_reject.sequence = job_bulk_write.sequence
    WHERE job_bulk_write.written_at > now() - interval '24 hours'
    AND job_bulk_write.rejected > 0
    LIMIT %(limit)s::INTEGER) AS "new") AS last_day

-- health_running {}
WITH held AS (SELECT job.id AS id, job.type_name AS type_name, job.leased_by AS leased_by, job.leased_until AS leased_until, job.started_at AS started_at, EXISTS (SELECT 1
    FROM worker
    WHERE worker.id = job.leased_by
    AND worker.heartbeat_at > now() - %(ttl)s::INTERVAL) AS is_held
  FROM job
  WHERE job.status = 'running')
SELECT counted.running, counted.orphaned, counted.overdue, longest.job_id, longest.type_name, longest.leased_by, longest.started_at
FROM (SELECT count(*) AS running, count(*) FILTER (WHERE NOT held.is_held) AS orphaned, count(*) FILTER (WHERE held.leased_until < now()) AS overdue
  FROM held) AS counted
LEFT OUTER JOIN (SELECT held.id AS job_id, held.type_name AS type_name, held.leased_by AS leased_by, held.started_at AS started_at
  FROM held
  ORDER BY held.started_at, held.id
  LIMIT 1) AS longest ON true

-- health_started_lately {}
SELECT seen.queue, seen.fairness_key, count(*) AS started
FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key
  FROM job
  WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT) >> 6
  AND job.started_at > now() - %(window)s::INTERVAL
  LIMIT %(limit)s::INTEGER) AS seen
GROUP BY seen.queue, seen.fairness_key

-- health_unfinished_writes {}
WITH RECURSIVE staged(write_id, sequence, staged_at) AS (SELECT first.write_id AS write_id, first.sequence AS sequence, first.staged_at AS staged_at
  FROM (SELECT job_bulk_staging.write_id AS write_id, job_bulk_staging.sequence AS sequence, job_bulk_staging.staged_at AS staged_at
    FROM job_bulk_staging
    ORDER BY job_bulk_staging.write_id, job_bulk_staging.sequence
    LIMIT 1) AS first
  UNION ALL
  SELECT following.write_id AS write_id, following.sequence AS sequence, following.staged_at AS staged_at
  FROM staged
  JOIN LATERAL (SELECT job_bulk_staging.write_id AS write_id, job_bulk_staging.sequence AS sequence, job_bulk_staging.staged_at AS staged_at
    FROM job_bulk_staging
    WHERE (job_bulk_staging.write_id, job_bulk_staging.sequence) > (staged.write_id, staged.sequence)
    ORDER BY job_bulk_staging.write_id, job_bulk_staging.sequence
    LIMIT 1) AS following ON true)
SELECT count(*) OVER () AS unfinished, found.write_id, found.sequence, found.staged_at
FROM (SELECT staged.write_id AS write_id, staged.sequence AS sequence, staged.staged_at AS staged_at
  FROM staged
  WHERE NOT (EXISTS (SELECT 1
      FROM job_bulk_write
      WHERE job_bulk_write.write_id = staged.write_id
      AND job_bulk_write.sequence = staged.sequence))
  LIMIT %(limit)s::INTEGER) AS found
ORDER BY found.staged_at
LIMIT 1

-- health_unresolved {}
SELECT count(*) AS unresolved, count(*) FILTER (WHERE found.died_at > now() - interval '1 hours') AS last_hour, count(*) FILTER (WHERE found.died_at > now() - interval '24 hours') AS last_day, count(*) FILTER (WHERE found.died_at > now() - interval '168 hours') AS last_week, count(*) FILTER (WHERE found.died_at > now() - interval '720 hours') AS last_month, min(found.died_at) AS oldest_at
FROM (SELECT dead_letter.died_at AS died_at
  FROM dead_letter
  WHERE dead_letter.resolution IS NULL
  LIMIT %(limit)s::INTEGER) AS found

-- heartbeat {}
INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, state, selectors, type_slots, progress)
VALUES (%(id)s::VARCHAR, %(name)s::VARCHAR, %(host)s::VARCHAR, %(pid)s::INTEGER, %(version)s::VARCHAR, %(queues)s::TEXT[], %(job_types)s::TEXT[], %(concurrency)s::INTEGER, %(state)s::VARCHAR, %(selectors)s::JSONB, %(type_slots)s::JSONB, %(progress)s::JSONB)
ON CONFLICT (id) DO
UPDATE
SET concurrency = excluded.concurrency, heartbeat_at = clock_timestamp(), state = excluded.state, progress = excluded.progress
RETURNING worker.drain_requested_at

-- history_attempts {"param_1": 1, "param_2": 2}
SELECT CAST(job_attempt.job_id AS TEXT) AS job_id, job_attempt.attempt AS attempt, CAST(job_attempt.worker_id AS TEXT) AS worker_id, job_attempt.started_at AS started_at, job_attempt.ended_at AS ended_at, CAST(job_attempt.outcome AS TEXT) AS outcome, CAST(job_attempt.error AS TEXT) AS error, CAST(job_attempt.error_fingerprint AS TEXT) AS error_fingerprint, CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
FROM job_attempt
WHERE job_attempt.changed_xid >= CAST(%(param_1)s AS xid8)
AND job_attempt.changed_xid < CAST(%(param_2)s AS xid8)

-- history_blockers {}
SELECT CAST(job_blocker.job_id AS TEXT) AS job_id, CAST(job_blocker.blocked_by_chain_id AS TEXT) AS blocked_by_chain_id, job_blocker.index AS index, job_blocker.is_resolved AS is_resolved, CAST(job_blocker.on_failure AS TEXT) AS on_failure
FROM job_blocker

-- history_count {"param_1": 1, "param_2": 2, "param_3": 1, "param_4": 2}
SELECT count(*) AS count_1
FROM job
WHERE job.changed_xid >= CAST(%(param_1)s AS xid8)
AND job.changed_xid < CAST(%(param_2)s AS xid8)
AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_3)s::BIGINT AS BIGINT) >> 6
AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_4)s::BIGINT AS BIGINT) >> 6

-- history_dead_letters {"param_1": 1, "param_2": 2}
SELECT CAST(dead_letter.id AS TEXT) AS id, CAST(dead_letter.job_id AS TEXT) AS job_id, CAST(dead_letter.chain_id AS TEXT) AS chain_id, CAST(dead_letter.queue AS TEXT) AS queue, CAST(dead_letter.type_name AS TEXT) AS type_name, CAST(dead_letter.input AS TEXT) AS input, dead_letter.input_version AS input_version, CAST(dead_letter.reason AS TEXT) AS reason, CAST(dead_letter.error AS TEXT) AS error, CAST(dead_letter.error_fingerprint AS TEXT) AS error_fingerprint, dead_letter.attempts AS attempts, dead_letter.died_at AS died_at, CAST(dead_letter.resolution AS TEXT) AS resolution, dead_letter.resolved_at AS resolved_at, CAST(dead_letter.resolved_by AS TEXT) AS resolved_by, CAST(CAST(dead_letter.changed_xid AS TEXT) AS BIGINT) AS xid, CAST(dead_letter.fairness_key AS TEXT) AS fairness_key
FROM dead_letter
WHERE dead_letter.changed_xid >= CAST(%(param_1)s AS xid8)
AND dead_letter.changed_xid < CAST(%(param_2)s AS xid8)

-- history_jobs {"param_1": ["a", "b"], "param_10": 1, "param_11": 2, "param_12": "00000000-0000-0000-0000-000000000001", "param_13": "00000000-0000-0000-0000-000000000002", "param_2": ["t"], "param_3": ["dead"], "param_4": "2026-01-31 00:00:00+00:00", "param_5": "2026-01-31 00:00:00+00:00", "param_6": "2026-01-31 00:00:00+00:00", "param_7": "2026-01-31 00:00:00+00:00", "param_8": 1, "param_9": 2}
SELECT CAST(job.id AS TEXT) AS id, CAST(job.queue AS TEXT) AS queue, CAST(job.type_name AS TEXT) AS type_name, job.priority AS priority, CAST(job.chain_id AS TEXT) AS chain_id, CAST(job.chain_type_name AS TEXT) AS chain_type_name, job.chain_index AS chain_index, CAST(job.input AS TEXT) AS input, job.input_version AS input_version, CAST(job.output AS TEXT) AS output, CAST(job.status AS TEXT) AS status, job.open_blockers AS open_blockers, job.created_at AS created_at, job.scheduled_at AS scheduled_at, job.started_at AS started_at, job.completed_at AS completed_at, CAST(job.completed_by AS TEXT) AS completed_by, job.attempt AS attempt, job.max_attempts AS max_attempts, CAST(EXTRACT(epoch
    FROM job.timeout) AS DOUBLE PRECISION) AS timeout_seconds, CAST(job.last_error AS TEXT) AS last_error, CAST(job.leased_by AS TEXT) AS leased_by, CAST(job.deduplication_key AS TEXT) AS deduplication_key, job.chain_completed_at AS chain_completed_at, CAST(job.chain_status AS TEXT) AS chain_status, CAST(job.trace_context AS TEXT) AS trace_context, CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid, job.expires_at AS expires_at, CAST(job.ordering_key AS TEXT) AS ordering_key, job.skip_while_retrying AS skip_while_retrying, job.rate_cost AS rate_cost, CAST(job.fairness_key AS TEXT) AS fairness_key
FROM job
WHERE CAST(job.queue AS TEXT) = ANY (%(param_1)s::TEXT[])
AND CAST(job.type_name AS TEXT) = ANY (%(param_2)s::TEXT[])
AND CAST(job.status AS TEXT) = ANY (%(param_3)s::TEXT[])
AND job.created_at >= CAST(%(param_4)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.created_at < CAST(%(param_5)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.completed_at >= CAST(%(param_6)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.completed_at < CAST(%(param_7)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.changed_xid >= CAST(%(param_8)s AS xid8)
AND job.changed_xid < CAST(%(param_9)s AS xid8)
AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_10)s::BIGINT AS BIGINT) >> 6
AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_11)s::BIGINT AS BIGINT) >> 6
AND job.id >= CAST(%(param_12)s::UUID AS UUID)
AND job.id < CAST(%(param_13)s::UUID AS UUID)

-- history_redacted {"jsonb_build_object_1": "type", "jsonb_build_object_2": "message", "jsonb_build_object_3": "(redacted)", "param_1": ["pay.%"], "param_2": "\"(redacted)\"", "param_3": "\"(redacted)\""}
SELECT CAST(job.id AS TEXT) AS id, CAST(job.queue AS TEXT) AS queue, CAST(job.type_name AS TEXT) AS type_name, job.priority AS priority, CAST(job.chain_id AS TEXT) AS chain_id, CAST(job.chain_type_name AS TEXT) AS chain_type_name, job.chain_index AS chain_index, CASE WHEN (job.input IS NOT NULL
  AND job.type_name LIKE ANY (%(param_1)s::TEXT[])) THEN %(param_2)s::VARCHAR ELSE CAST(job.input AS TEXT) END AS input, job.input_version AS input_version, CASE WHEN (job.output IS NOT NULL
  AND job.type_name LIKE ANY (%(param_1)s::TEXT[])) THEN %(param_3)s::VARCHAR ELSE CAST(job.output AS TEXT) END AS output, CAST(job.status AS TEXT) AS status, job.open_blockers AS open_blockers, job.created_at AS created_at, job.scheduled_at AS scheduled_at, job.started_at AS started_at, job.completed_at AS completed_at, CAST(job.completed_by AS TEXT) AS completed_by, job.attempt AS attempt, job.max_attempts AS max_attempts, CAST(EXTRACT(epoch
    FROM job.timeout) AS DOUBLE PRECISION) AS timeout_seconds, CASE WHEN (job.last_error IS NOT NULL
  AND job.type_name LIKE ANY (%(param_1)s::TEXT[])) THEN CAST(jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, CAST(job.last_error AS JSONB) -> 'type', %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR)) AS TEXT) ELSE CAST(job.last_error AS TEXT) END AS last_error, CAST(job.leased_by AS TEXT) AS leased_by, CAST(job.deduplication_key AS TEXT) AS deduplication_key, job.chain_completed_at AS chain_completed_at, CAST(job.chain_status AS TEXT) AS chain_status, CAST(job.trace_context AS TEXT) AS trace_context, CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid, job.expires_at AS expires_at, CAST(job.ordering_key AS TEXT) AS ordering_key, job.skip_while_retrying AS skip_while_retrying, job.rate_cost AS rate_cost, CAST(job.fairness_key AS TEXT) AS fairness_key
FROM job

-- history_redacted_attempts {"jsonb_build_object_1": "type", "jsonb_build_object_2": "message", "jsonb_build_object_3": "(redacted)", "param_1": ["a\\_b"]}
SELECT CAST(job_attempt.job_id AS TEXT) AS job_id, job_attempt.attempt AS attempt, CAST(job_attempt.worker_id AS TEXT) AS worker_id, job_attempt.started_at AS started_at, job_attempt.ended_at AS ended_at, CAST(job_attempt.outcome AS TEXT) AS outcome, CASE WHEN (job_attempt.error IS NOT NULL
  AND NOT (EXISTS (SELECT 1
      FROM job
      WHERE job.id = job_attempt.job_id
      AND NOT (job.type_name LIKE ANY (%(param_1)s::TEXT[]))))) THEN CAST(jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, CAST(job_attempt.error AS JSONB) -> 'type', %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR)) AS TEXT) ELSE CAST(job_attempt.error AS TEXT) END AS error, CAST(job_attempt.error_fingerprint AS TEXT) AS error_fingerprint, CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
FROM job_attempt

-- history_sample {"param_1": 12.5}
SELECT job_attempt_1.job_id
FROM job_attempt AS job_attempt_1 TABLESAMPLE system(%(param_1)s::DOUBLE PRECISION)
ORDER BY job_attempt_1.job_id

-- history_size {"current_setting_1": "block_size", "param_1": "job_attempt"}
SELECT pg_table_size(CAST(%(param_1)s::VARCHAR AS REGCLASS)) AS bytes, CAST(pg_relation_size(CAST(%(param_1)s::VARCHAR AS REGCLASS)) / CAST(CAST(current_setting(%(current_setting_1)s::VARCHAR) AS BIGINT) AS NUMERIC) AS BIGINT) AS pages

-- history_watermark {}
SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) AS xid, CAST(anon_1.system_identifier AS TEXT) AS system
FROM pg_control_system() AS anon_1

-- holders {}
SELECT given.type_name, given.key, job.id, job.queue, job.fairness_key
FROM unnest(%(type_names)s::TEXT[], %(keys)s::TEXT[]) AS given(type_name, key)
JOIN job ON true
WHERE job.chain_type_name = given.type_name
AND job.deduplication_key = given.key
AND job.deduplication_key IS NOT NULL
AND job.chain_index = 0
AND job.chain_completed_at IS NULL

-- holders_ended {}
SELECT given.type_name, given.key, newest.id, newest.queue, newest.fairness_key
FROM unnest(%(type_names)s::TEXT[], %(keys)s::TEXT[]) AS given(type_name, key)
JOIN LATERAL (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key
  FROM job
  WHERE job.chain_type_name = given.type_name
  AND job.deduplication_key = given.key
  AND job.deduplication_key IS NOT NULL
  AND job.chain_index = 0
  AND (job.chain_completed_at IS NULL OR CAST(%(window)s::INTERVAL AS INTERVAL) IS NULL OR job.created_at >= now() - CAST(%(window)s::INTERVAL AS INTERVAL))
  ORDER BY job.chain_completed_at IS NOT NULL, job.created_at DESC
  LIMIT 1) AS newest ON true

-- horizon_holders {"coalesce_1": -1, "coalesce_2": -1}
SELECT holder.kind, holder.xmin, holder.age, holder.seconds, holder.pid, holder.name, holder."user", holder.state, holder.query
FROM (SELECT CASE WHEN (EXISTS (SELECT 1
      FROM pg_catalog.pg_stat_replication AS sender
      WHERE sender.pid = session.pid)) THEN 'standby_feedback' ELSE 'session' END AS kind, CAST(CASE WHEN (coalesce(age(session.backend_xid), %(coalesce_1)s::INTEGER) > coalesce(age(session.backend_xmin), %(coalesce_2)s::INTEGER)) THEN session.backend_xid ELSE session.backend_xmin END AS TEXT) AS xmin, greatest(age(session.backend_xid), age(session.backend_xmin)) AS age, CASE WHEN (NOT (EXISTS (SELECT 1
        FROM pg_catalog.pg_stat_replication AS sender
        WHERE sender.pid = session.pid))) THEN CAST(EXTRACT(epoch
      FROM clock_timestamp() - session.xact_start) AS DOUBLE PRECISION) END AS seconds, CAST(session.pid AS INTEGER) AS pid, CAST(session.application_name AS TEXT) AS name, CAST(session.usename AS TEXT) AS "user", CAST(session.state AS TEXT) AS state, CAST(CASE WHEN (NOT (EXISTS (SELECT 1
          FROM pg_catalog.pg_stat_replication AS sender
          WHERE sender.pid = session.pid))) THEN left(session.query, 500) END AS TEXT) AS query
  FROM pg_catalog.pg_stat_activity AS session
  WHERE coalesce(age(session.backend_xid), age(session.backend_xmin)) IS NOT NULL
  AND (session.datid IS NULL OR session.datname = current_database())
  AND session.leader_pid IS NULL
  AND session.pid != pg_backend_pid()
  AND NOT (EXISTS (SELECT 1
      FROM pg_catalog.pg_stat_progress_vacuum AS vacuum
      WHERE vacuum.pid = session.pid))
  UNION ALL
  SELECT 'prepared_transaction' AS kind, CAST(prepared.transaction AS TEXT) AS xmin, age(prepared.transaction) AS age, CAST(EXTRACT(epoch
      FROM clock_timestamp() - prepared.prepared) AS DOUBLE PRECISION) AS seconds, CAST(NULL AS INTEGER) AS pid, CAST(prepared.gid AS TEXT) AS name, CAST(prepared.owner AS TEXT) AS "user", CAST(NULL AS TEXT) AS state, CAST(NULL AS TEXT) AS query
  FROM pg_catalog.pg_prepared_xacts AS prepared
  WHERE prepared.database = current_database()
  UNION ALL
  SELECT 'replication_slot' AS kind, CAST(slot.xmin AS TEXT) AS xmin, age(slot.xmin) AS age, CAST(EXTRACT(epoch
      FROM clock_timestamp() - CAST(to_jsonb(slot) ->> 'inactive_since' AS TIMESTAMP WITH TIME ZONE)) AS DOUBLE PRECISION) AS anon_1, CAST(slot.active_pid AS INTEGER) AS pid, CAST(slot.slot_name AS TEXT) AS name, CAST(NULL AS TEXT) AS "user", CASE WHEN slot.active THEN 'active' ELSE 'inactive' END AS state, CAST(NULL AS TEXT) AS query
  FROM pg_catalog.pg_replication_slots AS slot
  WHERE slot.xmin IS NOT NULL) AS holder
ORDER BY holder.age DESC, holder.xmin, holder.name
LIMIT %(limit)s::INTEGER

-- horizon_jobs_held {}
SELECT job.id, job.type_name, job.status, job.attempt, job.leased_by
FROM job
WHERE job.id = any(%(ids)s::UUID[])

-- late {"excluded": []}
SELECT job.id, job.root_id
FROM job
WHERE job.status = 'pending'
AND job.expires_at IS NOT NULL
AND job.expires_at <= now()
AND job.id != ALL (%(excluded)s::UUID[])
ORDER BY job.expires_at
LIMIT %(limit)s::INTEGER

-- lately_failures {}
SELECT newest.job_id, job.type_name, job.status, newest.attempt, newest.outcome, newest.error ->> 'type' AS error_type, left(newest.error ->> 'message', 300) AS error_message, CAST(clock_timestamp() - newest.ended_at AS INTERVAL) AS ago
FROM (SELECT job_attempt.job_id AS job_id, job_attempt.attempt AS attempt, job_attempt.worker_id AS worker_id, job_attempt.started_at AS started_at, job_attempt.ended_at AS ended_at, job_attempt.outcome AS outcome, job_attempt.error AS error, job_attempt.error_fingerprint AS error_fingerprint, job_attempt.changed_xid AS changed_xid
  FROM job_attempt
  ORDER BY job_attempt.changed_xid DESC
  LIMIT %(scan)s::INTEGER) AS newest
JOIN job ON job.id = newest.job_id
WHERE newest.outcome IN ('failed', 'timed_out', 'lost')
ORDER BY newest.changed_xid DESC, newest.ended_at DESC
LIMIT %(limit)s::INTEGER

-- lately_longest {}
SELECT job.id, job.type_name, job.queue, job.attempt, job.leased_by, CAST(clock_timestamp() - job.started_at AS INTERVAL) AS running_for, CAST(CASE WHEN (((worker.progress -> CAST(job.id AS TEXT)) ->> 'attempt') = CAST(job.attempt AS TEXT)) THEN worker.progress -> CAST(job.id AS TEXT) END AS JSONB) AS progress, worker.heartbeat_at
FROM job
LEFT OUTER JOIN worker ON worker.id = job.leased_by
WHERE job.status = 'running'
ORDER BY job.started_at, job.id
LIMIT %(limit)s::INTEGER

-- lease_holders {}
SELECT job.id, job.status, job.attempt, job.leased_by
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])

-- limits_current {}
SELECT limits.is_type, limits.name, limits.fairness_key, limits.global_concurrency, limits.concurrency_per_key, limits.rate_limit, limits.rate_period, limits.rate_burst, limits.rate_algorithm, limits.tokens, limits.starts, limits.spent_at, limits.now
FROM (SELECT false AS is_type, queue.name AS name, queue.fairness_key AS fairness_key, queue.global_concurrency AS global_concurrency, queue.concurrency_per_key AS concurrency_per_key, queue.rate_limit AS rate_limit, CASE WHEN (queue.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.rate_period END AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at, now() AS now
  FROM queue
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE queue.rate_limit IS NOT NULL
    AND state.is_type = false
    AND state.name = queue.name
    AND state.fairness_key = queue.fairness_key
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE coalesce(queue.rate_limit, queue.global_concurrency, queue.concurrency_per_key) IS NOT NULL
  UNION ALL
  SELECT true AS is_type, job_type.type_name AS name, '' AS fairness_key, job_type.global_concurrency AS global_concurrency, CAST(NULL AS INTEGER) AS concurrency_per_key, job_type.rate_limit AS rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at, now() AS now
  FROM job_type
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE job_type.rate_limit IS NOT NULL
    AND state.is_type = true
    AND state.name = job_type.type_name
    AND state.fairness_key = ''
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE coalesce(job_type.rate_limit, job_type.global_concurrency) IS NOT NULL) AS limits
ORDER BY limits.is_type, limits.name, limits.fairness_key
LIMIT %(limit)s::INTEGER

-- limits_lock {}
SELECT limits.is_type, limits.name, limits.fairness_key, limits.global_concurrency, limits.concurrency_per_key, limits.rate_limit, limits.rate_period, limits.rate_burst, limits.rate_algorithm, limits.tokens, limits.starts, limits.spent_at, limits.version, limits.place, limits.now
FROM (SELECT of_queues.is_type AS is_type, of_queues.name AS name, of_queues.fairness_key AS fairness_key, of_queues.global_concurrency AS global_concurrency, of_queues.concurrency_per_key AS concurrency_per_key, of_queues.rate_limit AS rate_limit, of_queues.rate_period AS rate_period, of_queues.rate_burst AS rate_burst, of_queues.rate_algorithm AS rate_algorithm, of_queues.tokens AS tokens, of_queues.starts AS starts, of_queues.spent_at AS spent_at, of_queues.version AS version, of_queues.place AS place, of_queues.now AS now
  FROM (SELECT false AS is_type, queue.name AS name, queue.fairness_key AS fairness_key, queue.global_concurrency AS global_concurrency, queue.concurrency_per_key AS concurrency_per_key, queue.rate_limit AS rate_limit, CASE WHEN (queue.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.rate_period END AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at, state.version AS version, state.place AS place, now() AS now
    FROM queue
    LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
      FROM rate_state AS state
      WHERE queue.rate_limit IS NOT NULL
      AND state.is_type = false
      AND state.name = queue.name
      AND state.fairness_key = queue.fairness_key
      ORDER BY state.version DESC
      LIMIT 1) AS state ON true
    WHERE queue.name = %(queue)s::VARCHAR
    AND queue.fairness_key = ANY (%(fairness_keys)s::TEXT[])
    FOR NO KEY UPDATE OF queue SKIP LOCKED) AS of_queues
  UNION ALL
  SELECT of_type.is_type AS is_type, of_type.name AS name, of_type.fairness_key AS fairness_key, of_type.global_concurrency AS global_concurrency, of_type.concurrency_per_key AS concurrency_per_key, of_type.rate_limit AS rate_limit, of_type.rate_period AS rate_period, of_type.rate_burst AS rate_burst, of_type.rate_algorithm AS rate_algorithm, of_type.tokens AS tokens, of_type.starts AS starts, of_type.spent_at AS spent_at, of_type.version AS version, of_type.place AS place, of_type.now AS now
  FROM (SELECT true AS is_type, job_type.type_name AS name, '' AS fairness_key, job_type.global_concurrency AS global_concurrency, CAST(NULL AS INTEGER) AS concurrency_per_key, job_type.rate_limit AS rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at, state.version AS version, state.place AS place, now() AS now
    FROM job_type
    LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
      FROM rate_state AS state
      WHERE job_type.rate_limit IS NOT NULL
      AND state.is_type = true
      AND state.name = job_type.type_name
      AND state.fairness_key = ''
      ORDER BY state.version DESC
      LIMIT 1) AS state ON true
    WHERE job_type.type_name = %(type_name)s::VARCHAR
    FOR NO KEY UPDATE OF job_type SKIP LOCKED) AS of_type) AS limits

-- limits_longest_running {}
WITH held AS (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key, job.type_name AS type_name, job.started_at AS started_at
  FROM job
  WHERE job.status = 'running')
SELECT longest.is_type, longest.name, longest.fairness_key, longest.job_id, longest.started_at
FROM (SELECT of_queues.is_type AS is_type, of_queues.name AS name, of_queues.fairness_key AS fairness_key, of_queues.job_id AS job_id, of_queues.started_at AS started_at
  FROM (SELECT false AS is_type, held.queue AS name, held.fairness_key AS fairness_key, held.id AS job_id, held.started_at AS started_at, row_number() OVER (PARTITION BY held.queue, held.fairness_key
      ORDER BY held.started_at, held.id) AS place
    FROM held) AS of_queues
  WHERE of_queues.place = 1
  UNION ALL
  SELECT of_type.is_type AS is_type, of_type.name AS name, of_type.fairness_key AS fairness_key, of_type.job_id AS job_id, of_type.started_at AS started_at
  FROM (SELECT true AS is_type, held.type_name AS name, '' AS fairness_key, held.id AS job_id, held.started_at AS started_at, row_number() OVER (PARTITION BY held.type_name
      ORDER BY held.started_at, held.id) AS place
    FROM held) AS of_type
  WHERE of_type.place = 1) AS longest
LIMIT %(limit)s::INTEGER

-- limits_running {"since": "0"}
SELECT count(*) FILTER (WHERE job.queue = %(queue)s::VARCHAR) AS anon_1, count(*) FILTER (WHERE job.type_name = %(type_name)s::VARCHAR) AS anon_2, CAST(least(min(job.changed_xid) FILTER (WHERE job.queue = %(queue)s::VARCHAR OR job.type_name = %(type_name)s::VARCHAR), pg_snapshot_xmin(pg_current_snapshot())) AS TEXT) AS since
FROM job
WHERE job.status = 'running'
AND job.changed_xid >= CAST(%(since)s::VARCHAR AS xid8)

-- limits_running_by_part {"since": "0"}
SELECT job.fairness_key, count(*) AS n, CAST(least(min(job.changed_xid), pg_snapshot_xmin(pg_current_snapshot())) AS TEXT) AS since
FROM job
WHERE job.status = 'running'
AND job.changed_xid >= CAST(%(since)s::VARCHAR AS xid8)
AND job.queue = %(queue)s::VARCHAR
GROUP BY job.fairness_key

-- limits_spend {}
UPDATE rate_state
SET version=(least(rate_state.version, 9223372036854775807 - 1) + 1), tokens=((%(tokens)s::DOUBLE PRECISION[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]), starts=CAST((%(starts)s::TEXT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)] AS BIGINT[]), spent_at=now()
WHERE rate_state.ctid = ANY (CAST(%(places)s::TEXT[] AS tid[]))
AND rate_state.is_type = (%(is_types)s::BOOLEAN[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
AND rate_state.name = (%(names)s::TEXT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
AND rate_state.fairness_key = (%(fairness_keys)s::TEXT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
AND rate_state.version = (%(versions)s::BIGINT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
RETURNING rate_state.name

-- limits_spend_first {}
INSERT INTO rate_state (is_type, name, fairness_key, tokens, starts, spent_at)
SELECT first.is_type, first.name, first.fairness_key, first.tokens, CAST(first.starts AS BIGINT[]) AS starts, now() AS now_1
FROM unnest(%(is_types)s::BOOLEAN[], %(names)s::TEXT[], %(fairness_keys)s::TEXT[], %(tokens)s::DOUBLE PRECISION[], %(starts)s::TEXT[]) AS first(is_type, name, fairness_key, tokens, starts)
WHERE NOT (EXISTS (SELECT is_there.name
    FROM rate_state AS is_there
    WHERE is_there.is_type = first.is_type
    AND is_there.name = first.name
    AND is_there.fairness_key = first.fairness_key))
RETURNING rate_state.name

-- list_blocked_jobs {"blocked_by_chain_id_1": "00000000-0000-0000-0000-000000000000", "job_id_1": "ffffffff-ffff-ffff-ffff-ffffffffffff", "param_1": 1000, "param_2": 51, "place_1": 1000}
SELECT page.id, page.place, page.fits, job.id AS id_1, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job_blocker.job_id AS id, row_number() OVER (ORDER BY job_blocker.job_id DESC) AS place, NOT job_blocker.is_resolved AS fits
    FROM job_blocker
    WHERE job_blocker.job_id < %(job_id_1)s::UUID
    AND job_blocker.blocked_by_chain_id = %(blocked_by_chain_id_1)s::UUID
    ORDER BY job_blocker.job_id DESC
    LIMIT %(param_1)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_2)s::INTEGER) AS page
LEFT OUTER JOIN job ON job.id = page.id
AND page.fits
ORDER BY page.id DESC

-- list_blockers {"index_1": -1, "job_id_1": "00000000-0000-0000-0000-000000000000", "param_1": 51}
SELECT job_chain.id, job_chain.queue, job_chain.type_name, job_chain.input, job_chain.input_version, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, job_chain.deduplication_key, job_chain.fairness_key, page.job_id, page.blocked_by_chain_id, page.index, page.is_resolved, page.on_failure, page.trace_context
FROM (SELECT job_blocker.job_id AS job_id, job_blocker.blocked_by_chain_id AS blocked_by_chain_id, job_blocker.index AS index, job_blocker.is_resolved AS is_resolved, job_blocker.on_failure AS on_failure, job_blocker.trace_context AS trace_context
  FROM job_blocker
  WHERE job_blocker.job_id = %(job_id_1)s::UUID
  AND job_blocker.index > %(index_1)s::INTEGER
  ORDER BY job_blocker.index
  LIMIT %(param_1)s::INTEGER) AS page
JOIN job_chain ON page.blocked_by_chain_id = job_chain.id
ORDER BY page.index

-- list_chain_jobs {"chain_index_2": -1, "id_1": "00000000-0000-0000-0000-000000000000", "param_1": 51, "param_2": 51, "root_id_1": "00000000-0000-0000-0000-000000000000"}
SELECT page.chain_index, job.id, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index AS chain_index_1, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM (SELECT members.id AS id, members.chain_index AS chain_index
  FROM (SELECT job.id AS id, job.chain_index AS chain_index
    FROM job
    WHERE job.id = %(id_1)s::UUID
    AND job.root_id IS NULL
    AND job.chain_index > %(chain_index_2)s::INTEGER
    UNION ALL (SELECT job.id AS id, job.chain_index AS chain_index
      FROM job
      WHERE job.root_id = %(root_id_1)s::UUID
      AND job.chain_index > %(chain_index_2)s::INTEGER
      ORDER BY job.chain_index ASC
      LIMIT %(param_1)s::INTEGER)) AS members
  ORDER BY members.chain_index ASC
  LIMIT %(param_2)s::INTEGER) AS page
JOIN job ON job.id = page.id
ORDER BY page.chain_index ASC

-- list_chains {"created_at_1": "0001-01-01 00:00:00+00:00", "id_2": "ffffffff-ffff-ffff-ffff-ffffffffffff", "param_1": 1, "param_2": 1, "param_3": 1000, "param_4": 51, "place_1": 1000, "queue_1_1": "default", "type_name_1_1": "test"}
SELECT page.id, page.place, page.fits, job_chain.id AS id_1, job_chain.queue, job_chain.type_name, job_chain.input, job_chain.input_version, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, job_chain.deduplication_key, job_chain.fairness_key
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job.id AS id, row_number() OVER (ORDER BY job.id DESC) AS place, job.root_id IS NULL
    AND job.type_name IN (%(type_name_1_1)s::VARCHAR)
    AND job.queue IN (%(queue_1_1)s::VARCHAR)
    AND job.created_at >= %(created_at_1)s::TIMESTAMP WITH TIME ZONE
    AND CASE WHEN (job.chain_completed_at IS NOT NULL) THEN coalesce(job.chain_status, job.status) WHEN (job.status != 'completed') THEN job.status ELSE coalesce((SELECT later.status
        FROM job AS later
        WHERE later.root_id = job.id
        ORDER BY later.chain_index DESC
        LIMIT %(param_1)s::INTEGER), job.status) END IN ('dead')
    AND (SELECT 1
      FROM job_blocker
      WHERE job_blocker.blocked_by_chain_id = job.id
      LIMIT %(param_2)s::INTEGER) IS NULL AS fits
    FROM job
    WHERE job.id < %(id_2)s::UUID
    ORDER BY job.id DESC
    LIMIT %(param_3)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_4)s::INTEGER) AS page
LEFT OUTER JOIN job_chain ON job_chain.id = page.id
AND page.fits
ORDER BY page.id DESC

-- list_chains_of_jobs {"id_2": "ffffffff-ffff-ffff-ffff-ffffffffffff", "param_1": ["00000000-0000-0000-0000-000000000000"], "param_2": ["00000000-0000-0000-0000-000000000000"], "param_3": 1000, "param_4": 51, "place_1": 1000}
SELECT page.id, page.place, page.fits, job_chain.id AS id_1, job_chain.queue, job_chain.type_name, job_chain.input, job_chain.input_version, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, job_chain.deduplication_key, job_chain.fairness_key
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job.id AS id, row_number() OVER (ORDER BY job.id DESC) AS place, job.root_id IS NULL AS fits
    FROM job
    WHERE job.id < %(id_2)s::UUID
    AND job.id = ANY (%(param_1)s::UUID[])
    AND job.id = ANY (array((SELECT member.chain_id
          FROM job AS member
          WHERE member.id = ANY (%(param_2)s::UUID[]))))
    ORDER BY job.id DESC
    LIMIT %(param_3)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_4)s::INTEGER) AS page
LEFT OUTER JOIN job_chain ON job_chain.id = page.id
AND page.fits
ORDER BY page.id DESC

-- list_jobs {"chain_type_name_1_1": "none", "created_at_1": "0001-01-01 00:00:00+00:00", "id_2": "ffffffff-ffff-ffff-ffff-ffffffffffff", "param_1": 1000, "param_2": 51, "place_1": 1000, "queue_1_1": "none", "type_name_1_1": "none"}
SELECT page.id, page.place, page.fits, job.id AS id_1, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job.id AS id, row_number() OVER (ORDER BY job.id DESC) AS place, job.type_name IN (%(type_name_1_1)s::VARCHAR)
    AND job.queue IN (%(queue_1_1)s::VARCHAR)
    AND job.created_at < %(created_at_1)s::TIMESTAMP WITH TIME ZONE
    AND job.status IN ('dead')
    AND job.chain_type_name IN (%(chain_type_name_1_1)s::VARCHAR) AS fits
    FROM job
    WHERE job.id < %(id_2)s::UUID
    ORDER BY job.id DESC
    LIMIT %(param_1)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_2)s::INTEGER) AS page
LEFT OUTER JOIN job ON job.id = page.id
AND page.fits
ORDER BY page.id DESC

-- list_jobs_of_chains {"id_2": "ffffffff-ffff-ffff-ffff-ffffffffffff", "param_1": ["00000000-0000-0000-0000-000000000000"], "param_2": ["00000000-0000-0000-0000-000000000000"], "param_3": 1000, "param_4": 51, "place_1": 1000}
SELECT page.id, page.place, page.fits, job.id AS id_1, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job.id AS id, row_number() OVER (ORDER BY job.id DESC) AS place, true AS fits
    FROM job
    WHERE job.id < %(id_2)s::UUID
    AND job.id = ANY (%(param_1)s::UUID[])
    AND job.id = ANY (array((SELECT later.id
          FROM job AS later
          WHERE later.root_id = ANY (%(param_2)s::UUID[]))) || %(param_2)s::UUID[])
    ORDER BY job.id DESC
    LIMIT %(param_3)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_4)s::INTEGER) AS page
LEFT OUTER JOIN job ON job.id = page.id
AND page.fits
ORDER BY page.id DESC

-- list_workers {"name_1": "spark\\_1-%", "param_1": ["a"], "param_2": ["default"], "param_3": "a", "param_4": "b", "param_5": 50}
SELECT worker.id, worker.name, worker.host, worker.pid, worker.version, worker.queues, worker.job_types, worker.concurrency, worker.state, worker.started_at, worker.heartbeat_at, worker.drain_requested_at, worker.selectors, worker.type_slots, CAST(clock_timestamp() - worker.heartbeat_at AS INTERVAL) AS silent_for, (SELECT count(*) AS count_1
  FROM job
  WHERE job.status = 'running'
  AND job.leased_by = worker.id) AS running
FROM worker
WHERE worker.id = ANY (%(param_1)s::TEXT[])
AND worker.name LIKE %(name_1)s::VARCHAR ESCAPE '\'
AND worker.queues && %(param_2)s::TEXT[]
AND (worker.name, worker.id) > (%(param_3)s::VARCHAR, %(param_4)s::VARCHAR)
ORDER BY worker.name, worker.id
LIMIT %(param_5)s::INTEGER

-- lock {"param_1": ["00000000-0000-0000-0000-000000000000"]}
SELECT job.id, job.status, job.chain_id, job.has_waiters
FROM job
WHERE job.id = ANY (array((SELECT unnest(ARRAY[meant.id, meant.chain_id]) AS unnest_1
      FROM job AS meant
      WHERE meant.id = ANY (%(param_1)s::UUID[]))))
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE

-- lock_continuations {}
SELECT job.id, job.chain_id
FROM job
WHERE job.root_id = ANY (%(ids)s::UUID[])
ORDER BY job.id
FOR UPDATE

-- lock_ended {}
SELECT job.id, coalesce(job.chain_status, job.status) AS coalesce_1
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.has_waiters
AND job.chain_completed_at IS NOT NULL
AND current_setting('transaction_isolation') = 'read committed'
ORDER BY job.id
FOR NO KEY UPDATE SKIP LOCKED

-- lock_keys {"hashtextextended_1": 0}
SELECT pg_advisory_xact_lock(hashtextextended(named.name, %(hashtextextended_1)s::INTEGER)) AS pg_advisory_xact_lock_1
FROM unnest(%(names)s::TEXT[]) AS named(name)

-- lock_roots {}
SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.root_id IS NULL
ORDER BY job.id
FOR UPDATE

-- lock_with_blockers {"param_1": ["00000000-0000-0000-0000-000000000000"]}
SELECT job.id, job.status, job.chain_id, job.has_waiters
FROM job
WHERE job.id = ANY (array((SELECT unnest(ARRAY[meant.id, meant.chain_id]) AS unnest_1
      FROM job AS meant
      WHERE meant.id = ANY (%(param_1)s::UUID[])
      UNION ALL
      SELECT job_blocker.blocked_by_chain_id
      FROM job_blocker
      WHERE job_blocker.job_id = ANY (%(param_1)s::UUID[])
      AND NOT job_blocker.is_resolved)))
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE

-- lost {"excluded": [], "param_1": "lost", "param_2": "timed_out"}
WITH lost AS (SELECT dead.id AS id, dead.leased_by AS leased_by, dead.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS dead ON true
  WHERE worker.heartbeat_at < now() - %(ttl)s::INTERVAL
  UNION ALL
  SELECT expired.id AS id, expired.leased_by AS leased_by, expired.root_id AS root_id, %(param_2)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    AND job.leased_until < now()
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS expired ON true
  WHERE worker.heartbeat_at >= now() - %(ttl)s::INTERVAL
  LIMIT %(limit)s::INTEGER)
SELECT lost.id
FROM lost

-- lost_orphans {"excluded": [], "param_1": "lost"}
WITH lost AS (SELECT orphan.id AS id, orphan.leased_by AS leased_by, orphan.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND NOT (EXISTS (SELECT 1
        FROM worker
        WHERE worker.id = job.leased_by))
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS orphan
  LIMIT %(limit)s::INTEGER)
SELECT lost.id
FROM lost

-- maintenance_bounded {"set_config_10": "statement_timeout", "set_config_11": "0", "set_config_12": false, "set_config_14": "idle_in_transaction_session_timeout", "set_config_15": "0", "set_config_16": false, "set_config_2": "application_name", "set_config_3": "sa_jobqueue maintenance", "set_config_4": false, "set_config_6": "lock_timeout", "set_config_7": "10000ms", "set_config_8": false}
SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1, set_config(%(set_config_6)s::VARCHAR, %(set_config_7)s::VARCHAR, %(set_config_8)s) AS set_config_5, set_config(%(set_config_10)s::VARCHAR, %(set_config_11)s::VARCHAR, %(set_config_12)s) AS set_config_9, set_config(%(set_config_14)s::VARCHAR, %(set_config_15)s::VARCHAR, %(set_config_16)s) AS set_config_13

-- maintenance_progress {}
SELECT progress.phase, progress.done, progress.total
FROM (SELECT CAST(pg_catalog.pg_stat_progress_vacuum.phase AS TEXT) AS phase, CAST(pg_catalog.pg_stat_progress_vacuum.heap_blks_scanned AS BIGINT) AS done, CAST(pg_catalog.pg_stat_progress_vacuum.heap_blks_total AS BIGINT) AS total
  FROM pg_catalog.pg_stat_progress_vacuum
  WHERE pg_catalog.pg_stat_progress_vacuum.pid = %(pid)s::INTEGER
  UNION ALL
  SELECT CAST(pg_catalog.pg_stat_progress_create_index.phase AS TEXT) AS phase, CAST(pg_catalog.pg_stat_progress_create_index.blocks_done AS BIGINT) AS blocks_done, CAST(pg_catalog.pg_stat_progress_create_index.blocks_total AS BIGINT) AS blocks_total
  FROM pg_catalog.pg_stat_progress_create_index
  WHERE pg_catalog.pg_stat_progress_create_index.pid = %(pid)s::INTEGER) AS progress

-- mark_awaited {"chain_index_1": 0}
WITH free AS (SELECT root.id AS id
  FROM job AS root
  WHERE root.id = %(awaited_id)s::UUID
  AND root.chain_index = %(chain_index_1)s::INTEGER
  AND root.chain_completed_at IS NULL
  AND NOT root.has_waiters
  FOR NO KEY UPDATE SKIP LOCKED)
UPDATE job
SET has_waiters=true
WHERE job.id = (SELECT free.id
  FROM free)
RETURNING job.id

-- notify_due {"pg_notify_2": ".job:due"}
SELECT pg_notify(%(pg_notify_2)s::VARCHAR, %(queue)s::VARCHAR) AS pg_notify_1

-- notify_each {"pg_notify_1": ".job:lost"}
SELECT count(pg_notify(%(pg_notify_1)s::VARCHAR, payload)) AS count_1
FROM unnest(%(ids)s::TEXT[]) AS payload

-- notify_rules {"pg_notify_2": ".job:rules"}
SELECT pg_notify(%(pg_notify_2)s::VARCHAR, '') AS pg_notify_1

-- owned {}
SELECT job.id, job.attempt
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND (CAST(job.status AS TEXT) = 'running'
  AND job.leased_by = %(worker_id)s::VARCHAR OR job.status = 'completed'
  AND job.completed_by = %(worker_id)s::VARCHAR)

-- progress_of_job {}
SELECT CAST(CASE WHEN (((worker.progress -> CAST(job.id AS TEXT)) ->> 'attempt') = CAST(job.attempt AS TEXT)) THEN worker.progress -> CAST(job.id AS TEXT) END AS JSONB) AS progress, worker.heartbeat_at
FROM job
LEFT OUTER JOIN worker ON worker.id = job.leased_by
AND job.status = 'running'
WHERE job.id = %(job_id)s::UUID

-- prune_bounded {}
SELECT set_config('lock_timeout', concat(%(seconds)s::INTEGER, 's'), true) AS set_config_1

-- prune_dead_letters {"excluded": []}
WITH page AS (SELECT dead_letter.id AS id, dead_letter.job_id AS job_id, dead_letter.type_name AS type_name, dead_letter.queue AS queue, dead_letter.died_at AS died_at, dead_letter.resolved_at AS resolved_at
  FROM dead_letter
  WHERE dead_letter.id > %(after)s::UUID
  ORDER BY dead_letter.id
  LIMIT %(scan)s::INTEGER), chosen AS (SELECT dead_letter.id AS id
  FROM dead_letter
  WHERE dead_letter.id = ANY (array((SELECT page.id
        FROM page
        WHERE page.resolved_at < now() - coalesce((%(types_dead_letters)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)], (%(queues_dead_letters)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)], %(default_dead_letters)s::INTERVAL)
        AND (SELECT CAST(job.status AS TEXT) = 'dead' AS anon_1
          FROM job
          WHERE job.id = page.job_id) IS NOT true
        AND page.id != ALL (%(excluded)s::UUID[]))))
  FOR UPDATE SKIP LOCKED), deleted AS (DELETE
  FROM dead_letter
  WHERE dead_letter.id = ANY (array((SELECT chosen.id
        FROM chosen)))
  RETURNING dead_letter.id)
SELECT count(*) AS scanned, (SELECT page.id
  FROM page
  ORDER BY page.id DESC
  LIMIT 1) AS last_id, bool_and(page.died_at >= now() - %(shortest)s::INTERVAL) AS is_young, (SELECT count(*) AS count_1
  FROM deleted) AS deleted
FROM page

-- prune_dead_letters_first {"excluded": []}
WITH page AS (SELECT dead_letter.id AS id, dead_letter.job_id AS job_id, dead_letter.type_name AS type_name, dead_letter.queue AS queue, dead_letter.died_at AS died_at, dead_letter.resolved_at AS resolved_at
  FROM dead_letter
  ORDER BY dead_letter.id
  LIMIT %(scan)s::INTEGER), deleted AS (SELECT page.id AS id
  FROM page
  WHERE page.resolved_at < now() - coalesce((%(types_dead_letters)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)], (%(queues_dead_letters)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)], %(default_dead_letters)s::INTERVAL)
  AND (SELECT CAST(job.status AS TEXT) = 'dead' AS anon_1
    FROM job
    WHERE job.id = page.job_id) IS NOT true
  AND page.id != ALL (%(excluded)s::UUID[]))
SELECT count(*) AS scanned, (SELECT page.id
  FROM page
  ORDER BY page.id DESC
  LIMIT 1) AS last_id, bool_and(page.died_at >= now() - %(shortest)s::INTERVAL) AS is_young, (SELECT count(*) AS count_1
  FROM deleted) AS deleted
FROM page

-- prune_lengths {}
SELECT job.root_id AS chain_id, count(*) AS n
FROM job
WHERE job.root_id = ANY (%(ids)s::UUID[])
GROUP BY job.root_id

-- prune_lock_roots {}
SELECT job.id, job.type_name, CAST(coalesce(job.chain_status, job.status) AS TEXT) AS outcome
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.root_id IS NULL
AND job.chain_completed_at IS NOT NULL
AND NOT job.has_waiters
AND job.chain_completed_at < now() - coalesce(CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN (%(types_completed)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN (%(types_cancelled)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN (%(types_dead)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] END, CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN (%(queues_completed)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN (%(queues_cancelled)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN (%(queues_dead)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] END, CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN %(default_completed)s::INTERVAL WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN %(default_cancelled)s::INTERVAL WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN %(default_dead)s::INTERVAL END)
ORDER BY job.id
FOR UPDATE SKIP LOCKED

-- prune_of_queues {}
SELECT queue.name, CASE WHEN (queue.retain_completed IS NOT NULL) THEN least(greatest(queue.retain_completed, interval '0'), interval '36500 days') END AS completed, CASE WHEN (queue.retain_cancelled IS NOT NULL) THEN least(greatest(queue.retain_cancelled, interval '0'), interval '36500 days') END AS cancelled, CASE WHEN (queue.retain_dead IS NOT NULL) THEN least(greatest(queue.retain_dead, interval '0'), interval '36500 days') END AS dead
FROM queue
WHERE queue.fairness_key = ''
AND coalesce(queue.retain_completed, queue.retain_cancelled, queue.retain_dead) IS NOT NULL

-- prune_roots {}
SELECT job.id, job.type_name, CAST(coalesce(job.chain_status, job.status) AS TEXT) AS outcome
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.root_id IS NULL
AND job.chain_completed_at IS NOT NULL
AND NOT job.has_waiters
AND job.chain_completed_at < now() - coalesce(CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN (%(types_completed)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN (%(types_cancelled)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN (%(types_dead)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] END, CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN (%(queues_completed)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN (%(queues_cancelled)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN (%(queues_dead)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] END, CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN %(default_completed)s::INTERVAL WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN %(default_cancelled)s::INTERVAL WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN %(default_dead)s::INTERVAL END)
ORDER BY job.id

-- prune_scan {}
WITH page AS (SELECT job.id AS id, job.root_id AS root_id, job.type_name AS type_name, job.queue AS queue, job.status AS status, job.chain_status AS chain_status, job.chain_completed_at AS chain_completed_at, job.has_waiters AS has_waiters, job.created_at AS created_at
  FROM job
  WHERE job.id > %(after)s::UUID
  ORDER BY job.id
  LIMIT %(scan)s::INTEGER)
SELECT count(*) AS scanned, (SELECT page.id
  FROM page
  ORDER BY page.id DESC
  LIMIT 1) AS last_id, bool_and(page.created_at >= now() - %(shortest)s::INTERVAL) AS is_young, array_agg(page.id
  ORDER BY page.id ASC) FILTER (WHERE page.root_id IS NULL
  AND page.chain_completed_at IS NOT NULL
  AND NOT page.has_waiters
  AND page.chain_completed_at < now() - coalesce(CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN (%(types_completed)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN (%(types_cancelled)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN (%(types_dead)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] END, CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN (%(queues_completed)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN (%(queues_cancelled)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN (%(queues_dead)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] END, CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN %(default_completed)s::INTERVAL WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN %(default_cancelled)s::INTERVAL WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN %(default_dead)s::INTERVAL END)) AS ids
FROM page

-- prune_scan_first {}
WITH page AS (SELECT job.id AS id, job.root_id AS root_id, job.type_name AS type_name, job.queue AS queue, job.status AS status, job.chain_status AS chain_status, job.chain_completed_at AS chain_completed_at, job.has_waiters AS has_waiters, job.created_at AS created_at
  FROM job
  ORDER BY job.id
  LIMIT %(scan)s::INTEGER)
SELECT count(*) AS scanned, (SELECT page.id
  FROM page
  ORDER BY page.id DESC
  LIMIT 1) AS last_id, bool_and(page.created_at >= now() - %(shortest)s::INTERVAL) AS is_young, array_agg(page.id
  ORDER BY page.id ASC) FILTER (WHERE page.root_id IS NULL
  AND page.chain_completed_at IS NOT NULL
  AND NOT page.has_waiters
  AND page.chain_completed_at < now() - coalesce(CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN (%(types_completed)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN (%(types_cancelled)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN (%(types_dead)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] END, CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN (%(queues_completed)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN (%(queues_cancelled)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN (%(queues_dead)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] END, CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN %(default_completed)s::INTERVAL WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN %(default_cancelled)s::INTERVAL WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN %(default_dead)s::INTERVAL END)) AS ids
FROM page

-- prune_waited_for {}
SELECT DISTINCT job_blocker.blocked_by_chain_id
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(job_ids)s::UUID[])

-- put_unique {}
INSERT INTO job (id, type_name, chain_id, chain_type_name, input, deduplication_key, scheduled_at)
SELECT given.id, given.type_name, given.chain_id, given.chain_type_name, CAST(given.input AS JSONB) AS input, given.deduplication_key, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
FROM unnest(%(id)s::UUID[], %(type_name)s::TEXT[], %(chain_id)s::UUID[], %(chain_type_name)s::TEXT[], %(input)s::TEXT[], %(deduplication_key)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(id, type_name, chain_id, chain_type_name, input, deduplication_key, delay, at)
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO NOTHING
RETURNING job.id

-- put_unique_holding {}
INSERT INTO job (id, type_name, chain_id, chain_type_name, input, deduplication_key, scheduled_at)
SELECT given.id, given.type_name, given.chain_id, given.chain_type_name, CAST(given.input AS JSONB) AS input, given.deduplication_key, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
FROM unnest(%(id)s::UUID[], %(type_name)s::TEXT[], %(chain_id)s::UUID[], %(chain_type_name)s::TEXT[], %(input)s::TEXT[], %(deduplication_key)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(id, type_name, chain_id, chain_type_name, input, deduplication_key, delay, at)
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO
UPDATE
SET changed_xid = pg_current_xact_id()
WHERE job.status IN ('pending', 'blocked')
RETURNING job.id

-- put_unique_replacing {}
INSERT INTO job (id, type_name, chain_id, chain_type_name, input, deduplication_key, scheduled_at)
SELECT given.id, given.type_name, given.chain_id, given.chain_type_name, CAST(given.input AS JSONB) AS input, given.deduplication_key, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
FROM unnest(%(id)s::UUID[], %(type_name)s::TEXT[], %(chain_id)s::UUID[], %(chain_type_name)s::TEXT[], %(input)s::TEXT[], %(deduplication_key)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(id, type_name, chain_id, chain_type_name, input, deduplication_key, delay, at)
WHERE NOT (EXISTS (SELECT 1
    FROM job AS past
    WHERE past.chain_type_name = given.chain_type_name
    AND past.deduplication_key = given.deduplication_key
    AND past.deduplication_key IS NOT NULL
    AND past.chain_index = 0
    AND past.chain_completed_at IS NOT NULL
    AND (CAST(%(window)s::INTERVAL AS INTERVAL) IS NULL OR past.created_at >= now() - CAST(%(window)s::INTERVAL AS INTERVAL))))
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO
UPDATE
SET priority = excluded.priority, input = excluded.input, input_version = excluded.input_version, scheduled_at = least(excluded.scheduled_at, job.created_at + CAST(%(max_wait)s::INTERVAL AS INTERVAL)), changed_xid = pg_current_xact_id()
WHERE job.status IN ('pending', 'blocked')
RETURNING job.id

-- quarantine_drop {}
DELETE
FROM quarantine
WHERE quarantine.subject = ANY (%(subjects)s::TEXT[])
AND quarantine.statement = %(statement)s::VARCHAR

-- quarantine_forget {}
DELETE
FROM quarantine
WHERE quarantine.retry_at < now() - %(after)s::INTERVAL

-- quarantine_page {}
SELECT quarantine.subject, quarantine.statement, quarantine.sqlstate, quarantine.error, quarantine.worker_id, quarantine.failures, quarantine.first_failed_at, quarantine.retry_at
FROM quarantine
WHERE %(subjects)s::TEXT[] IS NULL OR quarantine.subject = ANY (%(subjects)s::TEXT[])
ORDER BY quarantine.first_failed_at, quarantine.subject, quarantine.statement
LIMIT %(limit)s::INTEGER

-- quarantine_put {"failures_1": 1}
INSERT INTO quarantine (subject, statement, sqlstate, error, worker_id, retry_at)
VALUES (%(subject)s::VARCHAR, %(statement)s::VARCHAR, %(sqlstate)s::VARCHAR, %(error)s::VARCHAR, %(worker_id)s::VARCHAR, (now() + %(pause)s::INTERVAL))
ON CONFLICT (subject, statement) DO
UPDATE
SET sqlstate = excluded.sqlstate, error = excluded.error, worker_id = excluded.worker_id, failures = (quarantine.failures + %(failures_1)s::INTEGER), retry_at = excluded.retry_at

-- queues_add_missing {}
INSERT INTO queue (name, fairness_key, weight, concurrency_per_key, global_concurrency, rate_limit, rate_period, rate_burst, rate_algorithm, retry_base, retry_factor, retry_cap, retain_completed, retain_cancelled, retain_dead)
SELECT declared.name, declared.fairness_key, declared.weight, declared.concurrency_per_key, declared.global_concurrency, declared.rate_limit, declared.rate_period, declared.rate_burst, declared.rate_algorithm, declared.retry_base, declared.retry_factor, declared.retry_cap, declared.retain_completed, declared.retain_cancelled, declared.retain_dead
FROM unnest(%(name)s::TEXT[], %(fairness_key)s::TEXT[], %(weight)s::SMALLINT[], %(concurrency_per_key)s::INTEGER[], %(global_concurrency)s::INTEGER[], %(rate_limit)s::INTEGER[], %(rate_period)s::INTERVAL[], %(rate_burst)s::INTEGER[], %(rate_algorithm)s::TEXT[], %(retry_base)s::INTERVAL[], %(retry_factor)s::DOUBLE PRECISION[], %(retry_cap)s::INTERVAL[], %(retain_completed)s::INTERVAL[], %(retain_cancelled)s::INTERVAL[], %(retain_dead)s::INTERVAL[]) AS declared(name, fairness_key, weight, concurrency_per_key, global_concurrency, rate_limit, rate_period, rate_burst, rate_algorithm, retry_base, retry_factor, retry_cap, retain_completed, retain_cancelled, retain_dead)
ORDER BY declared.name, declared.fairness_key
ON CONFLICT DO NOTHING
RETURNING queue.name, queue.fairness_key

-- queues_drop {}
WITH locked AS (SELECT queue.name AS name
  FROM queue
  WHERE queue.name = ANY (%(names)s::TEXT[])
  AND queue.fairness_key = %(of_key)s::VARCHAR
  ORDER BY queue.name
  FOR UPDATE)
DELETE
FROM queue USING locked
WHERE queue.name = locked.name
AND queue.fairness_key = %(of_key)s::VARCHAR
RETURNING queue.name AS name

-- queues_lock {}
SELECT queue.name, queue.fairness_key, queue.paused_at, queue.paused_by, queue.weight, queue.concurrency_per_key, queue.global_concurrency, queue.rate_limit, queue.rate_period, queue.rate_burst, queue.rate_algorithm, queue.retry_base, queue.retry_factor, queue.retry_cap, queue.retain_completed, queue.retain_cancelled, queue.retain_dead, queue.created_at, queue.updated_at
FROM queue
WHERE queue.name = ANY (%(names)s::TEXT[])
AND queue.fairness_key = %(of_key)s::VARCHAR
ORDER BY queue.name
FOR NO KEY UPDATE

-- queues_lock_declared {}
SELECT queue.name, queue.fairness_key, queue.paused_at, queue.paused_by, queue.weight, queue.concurrency_per_key, queue.global_concurrency, queue.rate_limit, queue.rate_period, queue.rate_burst, queue.rate_algorithm, queue.retry_base, queue.retry_factor, queue.retry_cap, queue.retain_completed, queue.retain_cancelled, queue.retain_dead, queue.created_at, queue.updated_at
FROM queue
WHERE (queue.name, queue.fairness_key) IN (SELECT given.name, given.fairness_key
  FROM unnest(%(names)s::TEXT[], %(fairness_keys)s::TEXT[]) AS given(name, fairness_key))
ORDER BY queue.name, queue.fairness_key
FOR NO KEY UPDATE

-- queues_make {}
INSERT INTO queue (name, fairness_key)
SELECT name, %(of_key)s::VARCHAR AS anon_1
FROM unnest(%(names)s::TEXT[]) AS name
ORDER BY name
ON CONFLICT DO NOTHING

-- queues_page {"coalesce_1": 0}
WITH served AS (SELECT each.name AS name, count(*) AS workers
  FROM (SELECT unnest(worker.queues) AS name
    FROM worker) AS each
  GROUP BY each.name)
SELECT coalesce(queue.name, served.name) AS name, coalesce(queue.fairness_key, '') AS fairness_key, queue.weight, queue.concurrency_per_key, queue.global_concurrency, queue.rate_limit, CASE WHEN (queue.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.rate_period END AS rate_period, queue.rate_burst, queue.rate_algorithm, CASE WHEN (queue.retry_base < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.retry_base > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.retry_base END AS retry_base, queue.retry_factor, CASE WHEN (queue.retry_cap < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.retry_cap > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.retry_cap END AS retry_cap, CASE WHEN (queue.retain_completed < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.retain_completed > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.retain_completed END AS retain_completed, CASE WHEN (queue.retain_cancelled < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.retain_cancelled > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.retain_cancelled END AS retain_cancelled, CASE WHEN (queue.retain_dead < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.retain_dead > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.retain_dead END AS retain_dead, CASE WHEN (queue.paused_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (queue.paused_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE queue.paused_at END AS paused_at, queue.paused_by, CASE WHEN (queue.created_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (queue.created_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE queue.created_at END AS created_at, CASE WHEN (queue.updated_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (queue.updated_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE queue.updated_at END AS updated_at, coalesce(served.workers, of_whole.workers, %(coalesce_1)s::INTEGER) AS workers
FROM queue FULL OUTER JOIN served ON served.name = CASE WHEN (queue.fairness_key = '') THEN queue.name ELSE '' END
LEFT OUTER JOIN served AS of_whole ON queue.name = of_whole.name
WHERE (%(names)s::TEXT[] IS NULL OR coalesce(queue.name, served.name) = ANY (%(names)s::TEXT[]))
AND (%(of_key)s::VARCHAR IS NULL OR coalesce(queue.fairness_key, '') = %(of_key)s::VARCHAR)
AND (%(after)s::VARCHAR IS NULL OR (coalesce(queue.name, served.name), coalesce(queue.fairness_key, '')) > (%(after)s::VARCHAR, %(after_key)s::VARCHAR))
ORDER BY coalesce(queue.name, served.name), fairness_key
LIMIT %(limit)s::INTEGER

-- queues_pause {}
INSERT INTO queue (name, fairness_key, paused_at, paused_by)
SELECT name, %(of_key)s::VARCHAR AS anon_1, now() AS now_1, %(by)s::VARCHAR AS anon_2
FROM unnest(%(names)s::TEXT[]) AS name
ORDER BY name
ON CONFLICT (name, fairness_key) DO
UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, updated_at = now()
WHERE queue.paused_at IS NULL
RETURNING queue.name AS name

-- queues_put {}
INSERT INTO queue (name, fairness_key, weight, concurrency_per_key, global_concurrency, rate_limit, rate_period, rate_burst, rate_algorithm, retry_base, retry_factor, retry_cap, retain_completed, retain_cancelled, retain_dead)
VALUES (%(name)s::VARCHAR, %(fairness_key)s::VARCHAR, %(weight)s::SMALLINT, %(concurrency_per_key)s::INTEGER, %(global_concurrency)s::INTEGER, %(rate_limit)s::INTEGER, %(rate_period)s::INTERVAL, %(rate_burst)s::INTEGER, %(rate_algorithm)s::VARCHAR, %(retry_base)s::INTERVAL, %(retry_factor)s::DOUBLE PRECISION, %(retry_cap)s::INTERVAL, %(retain_completed)s::INTERVAL, %(retain_cancelled)s::INTERVAL, %(retain_dead)s::INTERVAL)
ON CONFLICT (name, fairness_key) DO
UPDATE
SET weight = excluded.weight, concurrency_per_key = excluded.concurrency_per_key, global_concurrency = excluded.global_concurrency, rate_limit = excluded.rate_limit, rate_period = excluded.rate_period, rate_burst = excluded.rate_burst, rate_algorithm = excluded.rate_algorithm, retry_base = excluded.retry_base, retry_factor = excluded.retry_factor, retry_cap = excluded.retry_cap, retain_completed = excluded.retain_completed, retain_cancelled = excluded.retain_cancelled, retain_dead = excluded.retain_dead, updated_at = now()
WHERE queue.weight IS DISTINCT
FROM excluded.weight OR queue.concurrency_per_key IS DISTINCT
FROM excluded.concurrency_per_key OR queue.global_concurrency IS DISTINCT
FROM excluded.global_concurrency OR queue.rate_limit IS DISTINCT
FROM excluded.rate_limit OR queue.rate_period IS DISTINCT
FROM excluded.rate_period OR queue.rate_burst IS DISTINCT
FROM excluded.rate_burst OR queue.rate_algorithm IS DISTINCT
FROM excluded.rate_algorithm OR queue.retry_base IS DISTINCT
FROM excluded.retry_base OR queue.retry_factor IS DISTINCT
FROM excluded.retry_factor OR queue.retry_cap IS DISTINCT
FROM excluded.retry_cap OR queue.retain_completed IS DISTINCT
FROM excluded.retain_completed OR queue.retain_cancelled IS DISTINCT
FROM excluded.retain_cancelled OR queue.retain_dead IS DISTINCT
FROM excluded.retain_dead
RETURNING queue.name AS name, queue.created_at = queue.updated_at AS is_new

-- queues_resume {}
WITH locked AS (SELECT queue.name AS name
  FROM queue
  WHERE queue.name = ANY (%(names)s::TEXT[])
  AND queue.fairness_key = %(of_key)s::VARCHAR
  AND queue.paused_at IS NOT NULL
  ORDER BY queue.name
  FOR NO KEY UPDATE)
UPDATE queue
SET paused_at=NULL, paused_by=NULL, updated_at=now()
FROM locked
WHERE queue.name = locked.name
AND queue.fairness_key = %(of_key)s::VARCHAR
RETURNING queue.name AS name

-- references {}
SELECT job_blocker.blocked_by_chain_id AS chain_id, job_blocker.job_id
FROM job_blocker
WHERE job_blocker.blocked_by_chain_id = ANY (%(ids)s::UUID[])
AND NOT (EXISTS (SELECT own
    FROM unnest(%(job_ids)s::UUID[]) AS own
    WHERE own = job_blocker.job_id))
ORDER BY job_blocker.blocked_by_chain_id, job_blocker.job_id
LIMIT %(limit)s::INTEGER

-- remaining {}
WITH startable AS (SELECT probe.id AS id
  FROM unnest(%(queues)s::TEXT[], %(fairness_keys)s::TEXT[], %(priorities)s::SMALLINT[], %(cursor_at)s::TIMESTAMP WITH TIME ZONE[], %(cursor_id)s::UUID[]) AS lane(queue, fairness_key, priority, cursor_at, cursor_id)
  JOIN LATERAL (SELECT job.id AS id
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at <= now()
    AND job.type_name = ANY (%(types)s::TEXT[])
    AND job.attempt < 2147483647
    AND (job.expires_at IS NULL OR job.expires_at > now())
    AND (job.ordering_key IS NULL OR (SELECT other.id
        FROM job AS other
        WHERE other.ordering_key = job.ordering_key
        AND other.ordering_key IS NOT NULL
        AND other.leased_by IS NOT NULL
        LIMIT 1) IS NULL
      AND job.id = (SELECT first.id
        FROM job AS first
        WHERE first.ordering_key = job.ordering_key
        AND first.ordering_key IS NOT NULL
        AND first.status IN ('blocked', 'pending')
        AND NOT (coalesce(first.skip_while_retrying, false)
          AND first.status = 'pending'
          AND first.attempt > 0
          AND first.scheduled_at > now())
        ORDER BY first.ordering_key, first.created_at, first.id
        LIMIT 1))
    AND (job.scheduled_at, job.id) > (lane.cursor_at, lane.cursor_id)
    ORDER BY job.scheduled_at, job.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED) AS probe ON true
  LIMIT 1)
SELECT (SELECT startable.id
  FROM startable) IS NOT NULL AS is_due, (SELECT root.id
  FROM job AS root
  WHERE root.has_waiters
  AND root.chain_completed_at IS NOT NULL
  ORDER BY root.id
  LIMIT 1) IS NOT NULL AS has_chains_to_unblock

-- replace {"deduplication_key_1": "k", "id_1": "00000000-0000-0000-0000-000000000000", "input": 1, "input_version": 1, "priority": 0}
UPDATE job
SET priority=%(priority)s::SMALLINT, input=%(input)s::JSONB, input_version=%(input_version)s::INTEGER, scheduled_at=now(), changed_xid=pg_current_xact_id()
WHERE job.id = %(id_1)s::UUID
AND job.deduplication_key = %(deduplication_key_1)s::VARCHAR
AND job.status IN ('pending', 'blocked')
RETURNING job.id

-- request_concurrency {"name_1": "spark\\_1-%", "param_1": ["a"], "param_2": ["default"]}
WITH chosen AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.id = ANY (%(param_1)s::TEXT[])
  AND worker.name LIKE %(name_1)s::VARCHAR ESCAPE '\'
  AND worker.queues && %(param_2)s::TEXT[]
  ORDER BY worker.id
  FOR NO KEY UPDATE)
UPDATE worker
SET concurrency_requested=%(requested)s::INTEGER
FROM chosen
WHERE worker.id = chosen.id
RETURNING worker.id

-- request_drain {"name_1": "spark\\_1-%", "param_1": ["a"], "param_2": ["default"]}
WITH chosen AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.id = ANY (%(param_1)s::TEXT[])
  AND worker.name LIKE %(name_1)s::VARCHAR ESCAPE '\'
  AND worker.queues && %(param_2)s::TEXT[]
  ORDER BY worker.id
  FOR NO KEY UPDATE)
UPDATE worker
SET drain_requested_at=coalesce(worker.drain_requested_at, now())
FROM chosen
WHERE worker.id = chosen.id
RETURNING worker.id

-- rescue {"chain_index_1": 0, "concat_1": "worker ", "concat_2": " stopped sending heartbeats", "concat_3": "worker ", "concat_4": " did not renew the lease in time", "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "Lost", "jsonb_build_object_3": "message", "jsonb_build_object_4": "worker", "least_1": 62, "least_2": 1, "make_interval_1": 0, "make_interval_2": 0, "make_interval_3": 0, "make_interval_4": 0, "make_interval_5": 0, "make_interval_6": 0, "param_1": "lost", "param_2": "timed_out", "param_3": "lost", "param_4": "lost", "param_5": "dead", "param_6": "dead", "power_1": 2}
WITH lost AS (SELECT dead.id AS id, dead.leased_by AS leased_by, dead.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS dead ON true
  WHERE worker.heartbeat_at < now() - %(ttl)s::INTERVAL
  UNION ALL
  SELECT expired.id AS id, expired.leased_by AS leased_by, expired.root_id AS root_id, %(param_2)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    AND job.leased_until < now()
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS expired ON true
  WHERE worker.heartbeat_at >= now() - %(ttl)s::INTERVAL
  LIMIT %(limit)s::INTEGER), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT lost.root_id
        FROM lost
        WHERE lost.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), back AS (UPDATE job
  SET status=CAST(CASE WHEN (job.attempt >= job.max_attempts) THEN 'dead' ELSE 'pending' END AS job_status), scheduled_at=CASE WHEN (job.attempt >= job.max_attempts) THEN job.scheduled_at ELSE now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, least(%(cap)s::DOUBLE PRECISION, %(base)s::DOUBLE PRECISION * power(%(power_1)s::INTEGER, least(job.attempt, %(least_1)s::INTEGER) - %(least_2)s::INTEGER)) * random()) END, completed_at=CASE WHEN (job.attempt >= job.max_attempts) THEN now() END, last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, CASE WHEN ((SELECT lost.reason
        FROM lost
        WHERE lost.id = job.id) = %(param_4)s::VARCHAR) THEN concat(%(concat_1)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_2)s::VARCHAR) ELSE concat(%(concat_3)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_4)s::VARCHAR) END, %(jsonb_build_object_4)s::VARCHAR, (SELECT lost.leased_by
      FROM lost
      WHERE lost.id = job.id)), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.attempt >= job.max_attempts
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT lost.id
        FROM lost)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), numbered AS (SELECT back.id AS id, back.status AS status, back.attempt AS attempt, back.started_at AS started_at, back.chain_id AS chain_id, back.queue AS queue, back.fairness_key AS fairness_key, back.type_name AS type_name, back.input AS input, back.input_version AS input_version, back.last_error AS last_error, back.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM back), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT numbered.id AS id, numbered.attempt AS attempt, (SELECT lost.leased_by
    FROM lost
    WHERE lost.id = numbered.id) AS anon_1, numbered.started_at AS started_at, %(param_3)s::VARCHAR AS anon_2, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3
  FROM numbered
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[numbered.n] AS anon_4, numbered.id AS id, numbered.chain_id AS chain_id, numbered.queue AS queue, numbered.fairness_key AS fairness_key, numbered.type_name AS type_name, numbered.input AS input, numbered.input_version AS input_version, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon__1, numbered.attempt AS attempt
  FROM numbered
  WHERE CAST(numbered.status AS TEXT) = %(param_5)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT back.status
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)))[array_position(array((SELECT back.chain_id
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT back.chain_id
        FROM back
        WHERE back.chain_id != back.id
        AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT numbered.id, numbered.type_name, numbered.attempt, numbered.status, (SELECT lost.leased_by
  FROM lost
  WHERE lost.id = numbered.id) AS worker_id, numbered.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = numbered.chain_id), numbered.has_waiters) AS has_waiters
FROM numbered

-- rescue_ended {"chain_index_1": 0, "concat_1": "worker ", "concat_2": " stopped sending heartbeats", "concat_3": "worker ", "concat_4": " did not renew the lease in time", "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "Lost", "jsonb_build_object_3": "message", "jsonb_build_object_4": "worker", "least_1": 62, "least_2": 1, "make_interval_1": 0, "make_interval_2": 0, "make_interval_3": 0, "make_interval_4": 0, "make_interval_5": 0, "make_interval_6": 0, "param_1": "lost", "param_2": "lost", "param_3": "lost", "param_4": "dead", "param_5": "dead", "power_1": 2}
WITH lost AS (SELECT dead.id AS id, dead.leased_by AS leased_by, dead.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS dead ON true
  WHERE worker.id = %(worker_id)s::VARCHAR
  LIMIT %(limit)s::INTEGER), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT lost.root_id
        FROM lost
        WHERE lost.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), back AS (UPDATE job
  SET status=CAST(CASE WHEN (job.attempt >= job.max_attempts) THEN 'dead' ELSE 'pending' END AS job_status), scheduled_at=CASE WHEN (job.attempt >= job.max_attempts) THEN job.scheduled_at ELSE now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, least(%(cap)s::DOUBLE PRECISION, %(base)s::DOUBLE PRECISION * power(%(power_1)s::INTEGER, least(job.attempt, %(least_1)s::INTEGER) - %(least_2)s::INTEGER)) * random()) END, completed_at=CASE WHEN (job.attempt >= job.max_attempts) THEN now() END, last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, CASE WHEN ((SELECT lost.reason
        FROM lost
        WHERE lost.id = job.id) = %(param_3)s::VARCHAR) THEN concat(%(concat_1)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_2)s::VARCHAR) ELSE concat(%(concat_3)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_4)s::VARCHAR) END, %(jsonb_build_object_4)s::VARCHAR, (SELECT lost.leased_by
      FROM lost
      WHERE lost.id = job.id)), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.attempt >= job.max_attempts
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT lost.id
        FROM lost)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), numbered AS (SELECT back.id AS id, back.status AS status, back.attempt AS attempt, back.started_at AS started_at, back.chain_id AS chain_id, back.queue AS queue, back.fairness_key AS fairness_key, back.type_name AS type_name, back.input AS input, back.input_version AS input_version, back.last_error AS last_error, back.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM back), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT numbered.id AS id, numbered.attempt AS attempt, (SELECT lost.leased_by
    FROM lost
    WHERE lost.id = numbered.id) AS anon_1, numbered.started_at AS started_at, %(param_2)s::VARCHAR AS anon_2, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3
  FROM numbered
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[numbered.n] AS anon_4, numbered.id AS id, numbered.chain_id AS chain_id, numbered.queue AS queue, numbered.fairness_key AS fairness_key, numbered.type_name AS type_name, numbered.input AS input, numbered.input_version AS input_version, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon__1, numbered.attempt AS attempt
  FROM numbered
  WHERE CAST(numbered.status AS TEXT) = %(param_4)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT back.status
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_5)s::VARCHAR)))[array_position(array((SELECT back.chain_id
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_5)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT back.chain_id
        FROM back
        WHERE back.chain_id != back.id
        AND CAST(back.status AS TEXT) = %(param_5)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT numbered.id, numbered.type_name, numbered.attempt, numbered.status, (SELECT lost.leased_by
  FROM lost
  WHERE lost.id = numbered.id) AS worker_id, numbered.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = numbered.chain_id), numbered.has_waiters) AS has_waiters
FROM numbered

-- rescue_only {"chain_index_1": 0, "concat_1": "worker ", "concat_2": " stopped sending heartbeats", "concat_3": "worker ", "concat_4": " did not renew the lease in time", "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "Lost", "jsonb_build_object_3": "message", "jsonb_build_object_4": "worker", "least_1": 62, "least_2": 1, "make_interval_1": 0, "make_interval_2": 0, "make_interval_3": 0, "make_interval_4": 0, "make_interval_5": 0, "make_interval_6": 0, "param_1": "lost", "param_2": "timed_out", "param_3": "lost", "param_4": "lost", "param_5": "dead", "param_6": "dead", "power_1": 2}
WITH lost AS (SELECT dead.id AS id, dead.leased_by AS leased_by, dead.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.id = ANY (%(ids)s::UUID[])
    AND job.leased_by = worker.id
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS dead ON true
  WHERE worker.heartbeat_at < now() - %(ttl)s::INTERVAL
  UNION ALL
  SELECT expired.id AS id, expired.leased_by AS leased_by, expired.root_id AS root_id, %(param_2)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.id = ANY (%(ids)s::UUID[])
    AND job.leased_by = worker.id
    AND job.leased_until < now()
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS expired ON true
  WHERE worker.heartbeat_at >= now() - %(ttl)s::INTERVAL
  LIMIT %(limit)s::INTEGER), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT lost.root_id
        FROM lost
        WHERE lost.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), back AS (UPDATE job
  SET status=CAST(CASE WHEN (job.attempt >= job.max_attempts) THEN 'dead' ELSE 'pending' END AS job_status), scheduled_at=CASE WHEN (job.attempt >= job.max_attempts) THEN job.scheduled_at ELSE now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, least(%(cap)s::DOUBLE PRECISION, %(base)s::DOUBLE PRECISION * power(%(power_1)s::INTEGER, least(job.attempt, %(least_1)s::INTEGER) - %(least_2)s::INTEGER)) * random()) END, completed_at=CASE WHEN (job.attempt >= job.max_attempts) THEN now() END, last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, CASE WHEN ((SELECT lost.reason
        FROM lost
        WHERE lost.id = job.id) = %(param_4)s::VARCHAR) THEN concat(%(concat_1)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_2)s::VARCHAR) ELSE concat(%(concat_3)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_4)s::VARCHAR) END, %(jsonb_build_object_4)s::VARCHAR, (SELECT lost.leased_by
      FROM lost
      WHERE lost.id = job.id)), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.attempt >= job.max_attempts
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT lost.id
        FROM lost)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), numbered AS (SELECT back.id AS id, back.status AS status, back.attempt AS attempt, back.started_at AS started_at, back.chain_id AS chain_id, back.queue AS queue, back.fairness_key AS fairness_key, back.type_name AS type_name, back.input AS input, back.input_version AS input_version, back.last_error AS last_error, back.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM back), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT numbered.id AS id, numbered.attempt AS attempt, (SELECT lost.leased_by
    FROM lost
    WHERE lost.id = numbered.id) AS anon_1, numbered.started_at AS started_at, %(param_3)s::VARCHAR AS anon_2, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3
  FROM numbered
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[numbered.n] AS anon_4, numbered.id AS id, numbered.chain_id AS chain_id, numbered.queue AS queue, numbered.fairness_key AS fairness_key, numbered.type_name AS type_name, numbered.input AS input, numbered.input_version AS input_version, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon__1, numbered.attempt AS attempt
  FROM numbered
  WHERE CAST(numbered.status AS TEXT) = %(param_5)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT back.status
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)))[array_position(array((SELECT back.chain_id
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT back.chain_id
        FROM back
        WHERE back.chain_id != back.id
        AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT numbered.id, numbered.type_name, numbered.attempt, numbered.status, (SELECT lost.leased_by
  FROM lost
  WHERE lost.id = numbered.id) AS worker_id, numbered.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = numbered.chain_id), numbered.has_waiters) AS has_waiters
FROM numbered

-- rescue_orphans {"chain_index_1": 0, "concat_1": "worker ", "concat_2": " stopped sending heartbeats", "concat_3": "worker ", "concat_4": " did not renew the lease in time", "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "Lost", "jsonb_build_object_3": "message", "jsonb_build_object_4": "worker", "least_1": 62, "least_2": 1, "make_interval_1": 0, "make_interval_2": 0, "make_interval_3": 0, "make_interval_4": 0, "make_interval_5": 0, "make_interval_6": 0, "param_1": "lost", "param_2": "lost", "param_3": "lost", "param_4": "dead", "param_5": "dead", "power_1": 2}
WITH lost AS (SELECT orphan.id AS id, orphan.leased_by AS leased_by, orphan.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND NOT (EXISTS (SELECT 1
        FROM worker
        WHERE worker.id = job.leased_by))
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS orphan
  LIMIT %(limit)s::INTEGER), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT lost.root_id
        FROM lost
        WHERE lost.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), back AS (UPDATE job
  SET status=CAST(CASE WHEN (job.attempt >= job.max_attempts) THEN 'dead' ELSE 'pending' END AS job_status), scheduled_at=CASE WHEN (job.attempt >= job.max_attempts) THEN job.scheduled_at ELSE now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, least(%(cap)s::DOUBLE PRECISION, %(base)s::DOUBLE PRECISION * power(%(power_1)s::INTEGER, least(job.attempt, %(least_1)s::INTEGER) - %(least_2)s::INTEGER)) * random()) END, completed_at=CASE WHEN (job.attempt >= job.max_attempts) THEN now() END, last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, CASE WHEN ((SELECT lost.reason
        FROM lost
        WHERE lost.id = job.id) = %(param_3)s::VARCHAR) THEN concat(%(concat_1)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_2)s::VARCHAR) ELSE concat(%(concat_3)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_4)s::VARCHAR) END, %(jsonb_build_object_4)s::VARCHAR, (SELECT lost.leased_by
      FROM lost
      WHERE lost.id = job.id)), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.attempt >= job.max_attempts
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT lost.id
        FROM lost)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), numbered AS (SELECT back.id AS id, back.status AS status, back.attempt AS attempt, back.started_at AS started_at, back.chain_id AS chain_id, back.queue AS queue, back.fairness_key AS fairness_key, back.type_name AS type_name, back.input AS input, back.input_version AS input_version, back.last_error AS last_error, back.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM back), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT numbered.id AS id, numbered.attempt AS attempt, (SELECT lost.leased_by
    FROM lost
    WHERE lost.id = numbered.id) AS anon_1, numbered.started_at AS started_at, %(param_2)s::VARCHAR AS anon_2, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3
  FROM numbered
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[numbered.n] AS anon_4, numbered.id AS id, numbered.chain_id AS chain_id, numbered.queue AS queue, numbered.fairness_key AS fairness_key, numbered.type_name AS type_name, numbered.input AS input, numbered.input_version AS input_version, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon__1, numbered.attempt AS attempt
  FROM numbered
  WHERE CAST(numbered.status AS TEXT) = %(param_4)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT back.status
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_5)s::VARCHAR)))[array_position(array((SELECT back.chain_id
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_5)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT back.chain_id
        FROM back
        WHERE back.chain_id != back.id
        AND CAST(back.status AS TEXT) = %(param_5)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT numbered.id, numbered.type_name, numbered.attempt, numbered.status, (SELECT lost.leased_by
  FROM lost
  WHERE lost.id = numbered.id) AS worker_id, numbered.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = numbered.chain_id), numbered.has_waiters) AS has_waiters
FROM numbered

-- roots {}
SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.root_id IS NULL
ORDER BY job.id

-- schedules_ahead {}
SELECT schedule.name, schedule.cron, schedule.time_zone, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, now() AS now
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.next_fire_at > now()

-- schedules_declared_elsewhere {"source_1": "code"}
SELECT schedule.name, schedule.type_name
FROM schedule
WHERE schedule.source = %(source_1)s::VARCHAR
AND NOT (schedule.name = ANY (%(names)s::TEXT[]))
ORDER BY schedule.name

-- schedules_drop {}
DELETE
FROM schedule
WHERE schedule.name = ANY (%(names)s::TEXT[])

-- schedules_due {"excluded": []}
SELECT schedule.name, schedule.type_name, schedule.queue, schedule.fairness_key, schedule.priority, schedule.max_attempts, CASE WHEN (schedule.timeout < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.timeout > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.timeout END AS timeout, schedule.rate_cost, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.cron, schedule.time_zone, schedule.misfire_policy, schedule.catch_up, CASE WHEN (schedule.grace < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.grace > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.grace END AS grace, schedule.overlap, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, CASE WHEN (schedule.last_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.last_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.last_fire_at END AS last_fire_at, coalesce((SELECT last_job.chain_completed_at IS NULL AS anon_1
    FROM job AS last_job
    WHERE last_job.id = schedule.last_job_id), false) AS is_open, coalesce(%(at)s::TIMESTAMP WITH TIME ZONE, now()) AS now
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.name != ALL (%(excluded)s::TEXT[])
AND (schedule.next_fire_at IS NULL OR schedule.next_fire_at <= coalesce(%(at)s::TIMESTAMP WITH TIME ZONE, now()))
AND (%(names)s::TEXT[] IS NULL OR schedule.name = ANY (%(names)s::TEXT[]))
ORDER BY schedule.next_fire_at, schedule.name
LIMIT %(limit)s::INTEGER
FOR UPDATE OF schedule SKIP LOCKED

-- schedules_due_names {"excluded": []}
SELECT schedule.name
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.name != ALL (%(excluded)s::TEXT[])
AND (schedule.next_fire_at IS NULL OR schedule.next_fire_at <= now())
ORDER BY schedule.next_fire_at, schedule.name
LIMIT %(limit)s::INTEGER

-- schedules_lock {}
SELECT schedule.name, schedule.type_name, schedule.queue, schedule.fairness_key, schedule.priority, schedule.max_attempts, CASE WHEN (schedule.timeout < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.timeout > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.timeout END AS timeout, schedule.rate_cost, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.cron, schedule.time_zone, schedule.misfire_policy, schedule.catch_up, CASE WHEN (schedule.grace < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.grace > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.grace END AS grace, schedule.overlap, schedule.source, CASE WHEN (schedule.paused_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.paused_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.paused_at END AS paused_at, schedule.paused_by, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, CASE WHEN (schedule.last_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.last_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.last_fire_at END AS last_fire_at, schedule.last_job_id, schedule.error, now() AS now
FROM schedule
WHERE schedule.name = ANY (%(names)s::TEXT[])
ORDER BY schedule.name
FOR UPDATE

-- schedules_made_already {}
SELECT job.id, job.status
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])

-- schedules_move {}
UPDATE schedule
SET next_fire_at=%(to_next_fire_at)s::TIMESTAMP WITH TIME ZONE, last_fire_at=coalesce(%(to_last_fire_at)s::TIMESTAMP WITH TIME ZONE, schedule.last_fire_at), error=%(to_error)s::VARCHAR, last_job_id=coalesce(%(to_last_job_id)s::UUID, schedule.last_job_id)
WHERE schedule.name = %(schedule)s::VARCHAR

-- schedules_named {}
SELECT schedule.name, schedule.type_name, schedule.queue, schedule.fairness_key, schedule.priority, schedule.max_attempts, CASE WHEN (schedule.timeout < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.timeout > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.timeout END AS timeout, schedule.rate_cost, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.cron, schedule.time_zone, schedule.misfire_policy, schedule.catch_up, CASE WHEN (schedule.grace < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.grace > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.grace END AS grace, schedule.overlap, schedule.source, CASE WHEN (schedule.paused_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.paused_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.paused_at END AS paused_at, schedule.paused_by, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, CASE WHEN (schedule.last_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.last_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.last_fire_at END AS last_fire_at, schedule.last_job_id, schedule.error, now() AS now
FROM schedule
WHERE schedule.name = ANY (%(names)s::TEXT[])
ORDER BY schedule.name

-- schedules_next_due {"excluded": []}
SELECT CAST(EXTRACT(epoch
    FROM min(coalesce(CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END, now())) - clock_timestamp()) AS DOUBLE PRECISION) AS anon_1
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.name != ALL (%(excluded)s::TEXT[])

-- schedules_page {}
SELECT schedule.name, schedule.type_name, schedule.queue, schedule.fairness_key, schedule.priority, schedule.max_attempts, CASE WHEN (schedule.timeout < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.timeout > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.timeout END AS timeout, schedule.rate_cost, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.cron, schedule.time_zone, schedule.misfire_policy, schedule.catch_up, CASE WHEN (schedule.grace < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.grace > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.grace END AS grace, schedule.overlap, schedule.source, CASE WHEN (schedule.paused_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.paused_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.paused_at END AS paused_at, schedule.paused_by, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, CASE WHEN (schedule.last_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.last_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.last_fire_at END AS last_fire_at, schedule.last_job_id, schedule.error, CASE WHEN (schedule.created_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.created_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.created_at END AS created_at, CASE WHEN (schedule.updated_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.updated_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.updated_at END AS updated_at, CASE WHEN (schedule.next_fire_at < clock_timestamp()
  AND schedule.paused_at IS NULL
  AND schedule.error IS NULL) THEN CAST(clock_timestamp() - CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS INTERVAL) END AS overdue
FROM schedule
WHERE (%(names)s::TEXT[] IS NULL OR schedule.name = ANY (%(names)s::TEXT[]))
AND (%(after)s::VARCHAR IS NULL OR schedule.name > %(after)s::VARCHAR)
ORDER BY schedule.name
LIMIT %(limit)s::INTEGER

-- schedules_pause {}
UPDATE schedule
SET paused_at=now(), paused_by=%(by)s::VARCHAR
WHERE schedule.name = ANY (%(names)s::TEXT[])
AND schedule.paused_at IS NULL

-- schedules_put {}
INSERT INTO schedule (name, type_name, queue, fairness_key, priority, input, input_version, fire_time_field, max_attempts, timeout, rate_cost, cron, time_zone, misfire_policy, catch_up, grace, overlap, next_fire_at, source)
VALUES (%(name)s::VARCHAR, %(type_name)s::VARCHAR, %(queue)s::VARCHAR, %(fairness_key)s::VARCHAR, %(priority)s::SMALLINT, %(input)s::JSONB, %(input_version)s::INTEGER, %(fire_time_field)s::VARCHAR, %(max_attempts)s::INTEGER, %(timeout)s::INTERVAL, %(rate_cost)s::INTEGER, %(cron)s::VARCHAR, %(time_zone)s::VARCHAR, %(misfire_policy)s::VARCHAR, %(catch_up)s::INTEGER, %(grace)s::INTERVAL, %(overlap)s, %(next_fire_at)s::TIMESTAMP WITH TIME ZONE, %(source)s::VARCHAR)
ON CONFLICT (name) DO
UPDATE
SET type_name = excluded.type_name, queue = excluded.queue, fairness_key = excluded.fairness_key, priority = excluded.priority, input = excluded.input, input_version = excluded.input_version, fire_time_field = excluded.fire_time_field, max_attempts = excluded.max_attempts, timeout = excluded.timeout, rate_cost = excluded.rate_cost, cron = excluded.cron, time_zone = excluded.time_zone, misfire_policy = excluded.misfire_policy, catch_up = excluded.catch_up, grace = excluded.grace, overlap = excluded.overlap, next_fire_at = CASE WHEN ((schedule.cron, schedule.time_zone) = (excluded.cron, excluded.time_zone)) THEN coalesce(schedule.next_fire_at, excluded.next_fire_at) ELSE excluded.next_fire_at END, error = NULL, source = excluded.source, updated_at = now()
WHERE schedule.error IS NOT NULL OR schedule.source IS DISTINCT
FROM excluded.source OR schedule.type_name IS DISTINCT
FROM excluded.type_name OR schedule.queue IS DISTINCT
FROM excluded.queue OR schedule.fairness_key IS DISTINCT
FROM excluded.fairness_key OR schedule.priority IS DISTINCT
FROM excluded.priority OR schedule.max_attempts IS DISTINCT
FROM excluded.max_attempts OR schedule.timeout IS DISTINCT
FROM excluded.timeout OR schedule.rate_cost IS DISTINCT
FROM excluded.rate_cost OR schedule.input IS DISTINCT
FROM excluded.input OR schedule.input_version IS DISTINCT
FROM excluded.input_version OR schedule.fire_time_field IS DISTINCT
FROM excluded.fire_time_field OR schedule.cron IS DISTINCT
FROM excluded.cron OR schedule.time_zone IS DISTINCT
FROM excluded.time_zone OR schedule.misfire_policy IS DISTINCT
FROM excluded.misfire_policy OR schedule.catch_up IS DISTINCT
FROM excluded.catch_up OR schedule.grace IS DISTINCT
FROM excluded.grace OR schedule.overlap IS DISTINCT
FROM excluded.overlap
RETURNING schedule.name, schedule.created_at = schedule.updated_at AS is_new

-- schedules_resume {}
UPDATE schedule
SET paused_at=NULL, paused_by=NULL, next_fire_at=%(next)s::TIMESTAMP WITH TIME ZONE
WHERE schedule.name = %(schedule)s::VARCHAR

-- schema_id_type {"param_1": "\"mail\".m_job", "param_2": "id"}
SELECT format_type(pg_catalog.pg_attribute.atttypid, NULL) AS format_type_1
FROM pg_catalog.pg_attribute
WHERE pg_catalog.pg_attribute.attrelid = to_regclass(%(param_1)s::VARCHAR)
AND pg_catalog.pg_attribute.attname = %(param_2)s::VARCHAR

-- session_name {}
SELECT current_setting('application_name') AS session_name

-- set_priority {}
WITH locked AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(ids)s::UUID[])
  AND row.status IN ('pending', 'blocked')
  AND row.priority != %(to)s::SMALLINT
  ORDER BY row.root_id IS NOT NULL, row.id
  FOR NO KEY UPDATE)
UPDATE job
SET priority=%(to)s::SMALLINT, changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT locked.id
      FROM locked)))
RETURNING job.id

-- settings_of_worker {}
SELECT setting.kind, setting.name, setting.fairness_key, setting.is_paused, setting.weight, setting.global_concurrency, setting.rate_limit, setting.rate_period, setting.rate_burst, setting.rate_algorithm, setting.sharers, setting.concurrency_per_key, setting.retry_base, setting.retry_factor, setting.retry_cap
FROM (SELECT 'queue' AS kind, queue.name AS name, queue.fairness_key AS fairness_key, queue.paused_at IS NOT NULL AS is_paused, queue.weight AS weight, queue.global_concurrency AS global_concurrency, queue.rate_limit AS rate_limit, CASE WHEN (queue.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.rate_period END AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, CASE WHEN (queue.rate_algorithm = 'local_token_bucket') THEN (SELECT CASE WHEN coalesce(bool_or(sharer.id = %(worker_id)s::VARCHAR), false) THEN count(*) ELSE 0 END AS anon_1
    FROM worker AS sharer
    WHERE sharer.state = 'running'
    AND queue.name = ANY (sharer.queues)) END AS sharers, queue.concurrency_per_key AS concurrency_per_key, queue.retry_base AS retry_base, queue.retry_factor AS retry_factor, queue.retry_cap AS retry_cap
  FROM queue
  WHERE queue.name = ANY (%(queues)s::TEXT[])
  UNION ALL
  SELECT 'type' AS kind, job_type.type_name AS type_name, '', job_type.paused_at IS NOT NULL AS anon_2, 1, job_type.global_concurrency AS global_concurrency, job_type.rate_limit AS rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, CASE WHEN (job_type.rate_algorithm = 'local_token_bucket') THEN (SELECT CASE WHEN coalesce(bool_or(sharer.id = %(worker_id)s::VARCHAR), false) THEN count(*) ELSE 0 END AS anon_3
    FROM worker AS sharer
    WHERE sharer.state = 'running'
    AND job_type.type_name = ANY (sharer.job_types)) END AS sharers, CAST(NULL AS INTEGER) AS anon_4, CAST(NULL AS INTERVAL) AS anon__1, CAST(NULL AS DOUBLE PRECISION) AS anon__2, CAST(NULL AS INTERVAL) AS anon__3
  FROM job_type
  WHERE job_type.type_name = ANY (%(types)s::TEXT[])
  UNION ALL
  SELECT 'worker' AS kind, worker.id AS id, '', false, 1, worker.concurrency_requested AS concurrency_requested, CAST(NULL AS INTEGER) AS anon_4, CAST(NULL AS INTERVAL) AS anon__4, CAST(NULL AS INTEGER) AS anon__5, CAST(NULL AS TEXT) AS anon__6, CAST(NULL AS INTEGER) AS anon__7, CAST(NULL AS INTEGER) AS anon__8, CAST(NULL AS INTERVAL) AS anon__9, CAST(NULL AS DOUBLE PRECISION) AS anon__10, CAST(NULL AS INTERVAL) AS anon__11
  FROM worker
  WHERE worker.id = %(worker_id)s::VARCHAR) AS setting

-- standing {}
SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'

-- still_to_unblock {}
SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.has_waiters
AND job.chain_completed_at IS NOT NULL

-- storage_indexes {"param_1": "job", "param_2": "job_attempt", "param_3": "job_blocker", "param_4": "dead_letter", "param_5": "worker", "param_6": "rate_state"}
SELECT CAST(relation.relname AS TEXT) AS name, CAST(owner.relname AS TEXT) AS table_name, CAST(method.amname AS TEXT) AS kind, pg_relation_size(relation.oid) AS bytes, CAST(relation.reltuples AS DOUBLE PRECISION) AS tuples, (SELECT CAST(sum(columns.avg_width * (1 - columns.null_frac)) AS DOUBLE PRECISION) AS sum_1
  FROM pg_catalog.pg_attribute AS attribute
  JOIN pg_catalog.pg_stats AS columns ON columns.attname = attribute.attname
  WHERE attribute.attrelid = owner.oid
  AND attribute.attnum = ANY (CAST(entry.indkey AS INTEGER[]))
  AND columns.schemaname = space.nspname
  AND columns.tablename = owner.relname
  AND NOT CAST(columns.inherited AS BOOLEAN)) AS key_bytes, CAST(entry.indisvalid AS BOOLEAN) AS is_valid, CAST(relation.reloptions AS TEXT[]) AS options, CAST(stats.idx_scan AS BIGINT) AS scans
FROM pg_catalog.pg_index AS entry
JOIN pg_catalog.pg_class AS relation ON relation.oid = entry.indexrelid
JOIN pg_catalog.pg_class AS owner ON owner.oid = entry.indrelid
JOIN pg_catalog.pg_namespace AS space ON space.oid = owner.relnamespace
JOIN pg_catalog.pg_am AS method ON method.oid = relation.relam
LEFT OUTER JOIN pg_catalog.pg_stat_all_indexes AS stats ON stats.indexrelid = relation.oid
WHERE entry.indrelid = ANY (ARRAY[to_regclass(%(param_1)s::VARCHAR) :: oid, to_regclass(%(param_2)s::VARCHAR) :: oid, to_regclass(%(param_3)s::VARCHAR) :: oid, to_regclass(%(param_4)s::VARCHAR) :: oid, to_regclass(%(param_5)s::VARCHAR) :: oid, to_regclass(%(param_6)s::VARCHAR) :: oid])
ORDER BY relation.relname

-- storage_server {"current_setting_1": "server_version_num", "current_setting_2": "max_connections", "current_setting_3": "autovacuum", "current_setting_4": "autovacuum_vacuum_threshold", "current_setting_5": "autovacuum_vacuum_scale_factor", "pg_has_role_1": "pg_read_all_stats", "pg_has_role_2": "usage"}
SELECT clock_timestamp() AS now, CAST(current_setting(%(current_setting_1)s::VARCHAR) AS INTEGER) AS server_version, pg_is_in_recovery() AS is_replica, (SELECT CAST(sum(connections.numbackends) AS INTEGER) AS sum_1
  FROM pg_catalog.pg_stat_database AS connections) AS connections, CAST(current_setting(%(current_setting_2)s::VARCHAR) AS INTEGER) AS max_connections, (SELECT age(database.datfrozenxid) AS age_1
  FROM pg_catalog.pg_database AS database
  WHERE database.datname = current_database()) AS frozen_age, CAST(current_setting(%(current_setting_3)s::VARCHAR) AS BOOLEAN) AS autovacuum, CAST(current_setting(%(current_setting_4)s::VARCHAR) AS INTEGER) AS vacuum_threshold, CAST(current_setting(%(current_setting_5)s::VARCHAR) AS DOUBLE PRECISION) AS vacuum_scale_factor, pg_has_role(%(pg_has_role_1)s::VARCHAR, %(pg_has_role_2)s::VARCHAR) AS sees_all

-- storage_tables {"param_1": "job", "param_2": "job_attempt", "param_3": "job_blocker", "param_4": "dead_letter", "param_5": "worker", "param_6": "rate_state"}
SELECT CAST(relation.relname AS TEXT) AS name, pg_table_size(relation.oid) AS bytes, pg_indexes_size(relation.oid) AS index_bytes, pg_relation_size(relation.oid) AS heap_bytes, CAST(stats.n_live_tup AS BIGINT) AS live, CAST(stats.n_dead_tup AS BIGINT) AS dead, (SELECT CAST(sum(columns.avg_width * (1 - columns.null_frac)) AS DOUBLE PRECISION) AS sum_1
  FROM pg_catalog.pg_stats AS columns
  WHERE columns.schemaname = space.nspname
  AND columns.tablename = relation.relname
  AND NOT CAST(columns.inherited AS BOOLEAN)) AS row_bytes, CAST(relation.reloptions AS TEXT[]) AS options, CAST(stats.n_tup_ins AS BIGINT) AS inserted, CAST(stats.n_tup_upd AS BIGINT) AS updated, CAST(stats.n_tup_del AS BIGINT) AS deleted, CAST(stats.n_tup_hot_upd AS BIGINT) AS hot_updated, stats.last_vacuum, stats.last_autovacuum, stats.last_autoanalyze, (SELECT CAST(progress.phase AS TEXT) AS phase
  FROM pg_catalog.pg_stat_progress_vacuum AS progress
  WHERE progress.relid = relation.oid
  LIMIT 1) AS vacuuming
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace AS space ON space.oid = relation.relnamespace
JOIN pg_catalog.pg_stat_all_tables AS stats ON stats.relid = relation.oid
WHERE relation.oid = ANY (ARRAY[to_regclass(%(param_1)s::VARCHAR) :: oid, to_regclass(%(param_2)s::VARCHAR) :: oid, to_regclass(%(param_3)s::VARCHAR) :: oid, to_regclass(%(param_4)s::VARCHAR) :: oid, to_regclass(%(param_5)s::VARCHAR) :: oid, to_regclass(%(param_6)s::VARCHAR) :: oid])
ORDER BY relation.relname

-- stream_bounds {"param_1": 1, "param_2": 2, "param_3": 1, "param_4": 10}
SELECT (SELECT CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job_attempt
  WHERE job_attempt.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job_attempt.changed_xid < CAST(%(param_2)s AS xid8)
  ORDER BY job_attempt.changed_xid
  LIMIT %(param_3)s::INTEGER) AS first, (SELECT CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job_attempt
  WHERE job_attempt.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job_attempt.changed_xid < CAST(%(param_2)s AS xid8)
  ORDER BY job_attempt.changed_xid
  LIMIT %(param_3)s::INTEGER OFFSET %(param_4)s::INTEGER) AS beyond

-- stream_bounds_of_jobs {"param_1": 1, "param_2": 2, "param_3": 1, "param_4": 2, "param_5": 1, "param_6": 10}
SELECT (SELECT CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job
  WHERE job.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job.changed_xid < CAST(%(param_2)s AS xid8)
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_3)s::BIGINT AS BIGINT) >> 6
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_4)s::BIGINT AS BIGINT) >> 6
  ORDER BY job.changed_xid
  LIMIT %(param_5)s::INTEGER) AS first, (SELECT CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job
  WHERE job.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job.changed_xid < CAST(%(param_2)s AS xid8)
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_3)s::BIGINT AS BIGINT) >> 6
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_4)s::BIGINT AS BIGINT) >> 6
  ORDER BY job.changed_xid
  LIMIT %(param_5)s::INTEGER OFFSET %(param_6)s::INTEGER) AS beyond

-- stream_first_xid {"param_1": 1, "param_2": 2, "param_3": 1, "param_4": 2, "param_5": 1}
SELECT (SELECT CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job
  WHERE job.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job.changed_xid < CAST(%(param_2)s AS xid8)
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_3)s::BIGINT AS BIGINT) >> 6
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_4)s::BIGINT AS BIGINT) >> 6
  ORDER BY job.changed_xid
  LIMIT %(param_5)s::INTEGER) AS xid

-- stream_holders {"param_1": "prepared"}
SELECT holder.pid, holder.application_name, holder."user", holder.state, holder.open_for, holder.prepared
FROM (SELECT CAST(pg_catalog.pg_stat_activity.pid AS INTEGER) AS pid, CAST(pg_catalog.pg_stat_activity.application_name AS TEXT) AS application_name, CAST(pg_catalog.pg_stat_activity.usename AS TEXT) AS "user", CAST(pg_catalog.pg_stat_activity.state AS TEXT) AS state, CAST(clock_timestamp() - pg_catalog.pg_stat_activity.xact_start AS INTERVAL) AS open_for, CAST(NULL AS TEXT) AS prepared
  FROM pg_catalog.pg_stat_activity
  WHERE pg_catalog.pg_stat_activity.backend_xid = CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)
  UNION ALL
  SELECT CAST(NULL AS INTEGER) AS anon_1, CAST(NULL AS TEXT) AS anon__1, CAST(pg_catalog.pg_prepared_xacts.owner AS TEXT) AS owner, CAST(%(param_1)s::VARCHAR AS TEXT) AS anon_2, CAST(clock_timestamp() - pg_catalog.pg_prepared_xacts.prepared AS INTERVAL) AS anon_3, CAST(pg_catalog.pg_prepared_xacts.gid AS TEXT) AS gid
  FROM pg_catalog.pg_prepared_xacts
  WHERE pg_catalog.pg_prepared_xacts.transaction = CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)) AS holder

-- stream_position {}
SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) AS xid, CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) AS next_xid, CAST(anon_1.system_identifier AS TEXT) AS system, pg_is_in_recovery() AS is_replica
FROM pg_control_system() AS anon_1

-- supersede {"param_1": "superseded", "pg_notify_2": ".job:lost"}
WITH recorded_attempt AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome)
  SELECT job.id AS id, job.attempt AS attempt, job.leased_by AS leased_by, job.started_at AS started_at, %(param_1)s::VARCHAR AS anon_1
  FROM job
  WHERE job.id = %(job_id)s::UUID
  ON CONFLICT (job_id, attempt) DO NOTHING)
SELECT pg_notify(%(pg_notify_2)s::VARCHAR, CAST(%(job_id)s::UUID AS TEXT)) AS pg_notify_1

-- trace_linked {}
SELECT found.kind, found.traceparent
FROM (SELECT 'failed_attempt' AS kind, job.last_error ->> 'trace_context' AS traceparent, -1 AS place
  FROM job
  WHERE job.id = %(job_id)s::UUID
  UNION ALL
  SELECT 'blocker', root.trace_context AS trace_context, job_blocker.index AS index
  FROM job_blocker
  JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
  WHERE job_blocker.job_id = %(job_id)s::UUID) AS found
WHERE found.traceparent IS NOT NULL
ORDER BY found.place
LIMIT 100

-- types_page {"coalesce_1": 0}
WITH served AS (SELECT each.name AS name, count(*) AS workers
  FROM (SELECT unnest(worker.job_types) AS name
    FROM worker) AS each
  GROUP BY each.name)
SELECT coalesce(job_type.type_name, served.name) AS type_name, job_type.global_concurrency, job_type.rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst, job_type.rate_algorithm, CASE WHEN (job_type.paused_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (job_type.paused_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE job_type.paused_at END AS paused_at, job_type.paused_by, CASE WHEN (job_type.created_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (job_type.created_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE job_type.created_at END AS created_at, CASE WHEN (job_type.updated_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (job_type.updated_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE job_type.updated_at END AS updated_at, coalesce(served.workers, %(coalesce_1)s::INTEGER) AS workers
FROM job_type FULL OUTER JOIN served ON job_type.type_name = served.name
WHERE (%(names)s::TEXT[] IS NULL OR coalesce(job_type.type_name, served.name) = ANY (%(names)s::TEXT[]))
AND (%(after)s::VARCHAR IS NULL OR coalesce(job_type.type_name, served.name) > %(after)s::VARCHAR)
ORDER BY coalesce(job_type.type_name, served.name)
LIMIT %(limit)s::INTEGER

-- types_put {}
INSERT INTO job_type (type_name, global_concurrency, rate_limit, rate_period, rate_burst, rate_algorithm)
VALUES (%(type_name)s::VARCHAR, %(global_concurrency)s::INTEGER, %(rate_limit)s::INTEGER, %(rate_period)s::INTERVAL, %(rate_burst)s::INTEGER, %(rate_algorithm)s::VARCHAR)
ON CONFLICT (type_name) DO
UPDATE
SET global_concurrency = excluded.global_concurrency, rate_limit = excluded.rate_limit, rate_period = excluded.rate_period, rate_burst = excluded.rate_burst, rate_algorithm = excluded.rate_algorithm, updated_at = now()
WHERE job_type.global_concurrency IS DISTINCT
FROM excluded.global_concurrency OR job_type.rate_limit IS DISTINCT
FROM excluded.rate_limit OR job_type.rate_period IS DISTINCT
FROM excluded.rate_period OR job_type.rate_burst IS DISTINCT
FROM excluded.rate_burst OR job_type.rate_algorithm IS DISTINCT
FROM excluded.rate_algorithm
RETURNING job_type.type_name AS name, job_type.created_at = job_type.updated_at AS is_new

-- unblock {"chain_index_1": 0, "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "BlockerFailed", "jsonb_build_object_3": "message", "jsonb_build_object_4": "a chain it waited for failed, and it must not run without", "on_failure_1": "fail", "on_failure_2": "wait", "outcome_1": "completed", "param_1": true, "param_2": "blocker_failed", "param_3": "blocker_failed", "param_4": "blocked", "param_5": "dead"}
WITH examined AS (SELECT chain.id AS chain_id, reached.place AS place, reached.job_id AS job_id, chain.outcome != %(outcome_1)s::VARCHAR
  AND reached.on_failure = %(on_failure_1)s::VARCHAR AS fails
  FROM unnest(%(chains)s::UUID[], %(outcomes)s::TEXT[], %(afters)s::UUID[]) AS chain(id, outcome, after)
  JOIN LATERAL (SELECT edge.ctid AS place, edge.job_id AS job_id, edge.on_failure AS on_failure
    FROM job_blocker AS edge
    WHERE edge.blocked_by_chain_id = chain.id
    AND edge.job_id > chain.after
    AND NOT edge.is_resolved
    AND edge.job_id != ALL (%(excluded)s::UUID[])
    AND (chain.outcome = %(outcome_1)s::VARCHAR OR edge.on_failure != %(on_failure_2)s::VARCHAR)
    ORDER BY edge.blocked_by_chain_id, edge.job_id
    LIMIT %(limit)s::INTEGER) AS reached ON true
  LIMIT %(limit)s::INTEGER), waiting AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.id = ANY (array((SELECT examined.job_id
        FROM examined)))), locked AS (SELECT row.id AS id, row.root_id AS root_id, row.status = 'blocked' AS was_blocked
  FROM job AS row
  WHERE row.id = ANY (array_cat(array((SELECT waiting.id
          FROM waiting)), array((SELECT waiting.root_id
          FROM waiting
          WHERE waiting.root_id IS NOT NULL))))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), usable AS (SELECT examined.chain_id AS chain_id, examined.place AS place, examined.job_id AS job_id, examined.fails AS fails
  FROM examined
  WHERE examined.job_id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
              FROM locked))))))), closed AS (UPDATE job_blocker
  SET is_resolved=%(param_1)s
  WHERE job_blocker.ctid = ANY (array((SELECT usable.place
        FROM usable
        WHERE NOT usable.fails)))
  RETURNING job_blocker.job_id), counted AS (SELECT usable.job_id AS job_id, CAST(count(*) FILTER (WHERE NOT usable.fails) AS INTEGER) AS closing, bool_or(usable.fails) AS fails
  FROM usable
  GROUP BY usable.job_id), changed AS (UPDATE job
  SET status=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN 'dead' WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN 'pending' ELSE job.status END, open_blockers=greatest(job.open_blockers - coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0), 0), scheduled_at=CASE WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN greatest(job.scheduled_at, now()) ELSE job.scheduled_at END, completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN now() ELSE job.completed_at END, last_error=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR) ELSE job.last_error END, chain_completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))
    AND job.chain_index = %(chain_index_1)s::INTEGER OR job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN now() ELSE job.chain_completed_at END, changed_xid=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails))) OR job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN pg_current_xact_id() ELSE job.changed_xid END, chain_status=CASE WHEN (job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN 'dead' ELSE job.chain_status END
  WHERE job.id = ANY (array_cat(array((SELECT counted.job_id
          FROM counted)), array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails)))))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), moved AS (SELECT changed.id AS id, changed.status AS status, changed.attempt AS attempt, changed.started_at AS started_at, changed.chain_id AS chain_id, changed.queue AS queue, changed.fairness_key AS fairness_key, changed.type_name AS type_name, changed.input AS input, changed.input_version AS input_version, changed.last_error AS last_error, changed.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM changed
  WHERE changed.id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.was_blocked)))
  AND CAST(changed.status AS TEXT) != %(param_4)s::VARCHAR), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[moved.n] AS anon_1, moved.id AS id, moved.chain_id AS chain_id, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.input AS input, moved.input_version AS input_version, %(param_2)s::VARCHAR AS anon_2, moved.last_error AS last_error, %(param_3)s::VARCHAR AS anon_3, moved.attempt AS attempt
  FROM moved
  WHERE CAST(moved.status AS TEXT) = %(param_5)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id())
SELECT "both".chain_id, "both".job_id, "both".held, "both".status, "both".queue, "both".fairness_key, "both".type_name, "both".attempt, "both".has_waiters
FROM (SELECT moved.chain_id AS chain_id, moved.id AS job_id, false AS held, CAST(moved.status AS TEXT) AS status, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.attempt AS attempt, coalesce((SELECT changed.has_waiters
      FROM changed
      WHERE changed.id = moved.chain_id), moved.has_waiters) AS has_waiters
  FROM moved
  UNION ALL
  SELECT examined.chain_id AS chain_id, examined.job_id AS job_id, NOT (examined.job_id = ANY (array((SELECT locked.id
          FROM locked
          WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
                FROM locked))))))) AS held, CAST(NULL AS TEXT) AS anon_4, CAST(NULL AS TEXT) AS anon__1, CAST(NULL AS TEXT) AS anon__2, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS INTEGER) AS anon__4, CAST(NULL AS BOOLEAN) AS anon__5
  FROM examined) AS "both"

-- unblock_failed {"chain_index_1": 0, "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "BlockerFailed", "jsonb_build_object_3": "message", "jsonb_build_object_4": "a chain it waited for failed, and it must not run without", "on_failure_1": "fail", "on_failure_2": "wait", "outcome_1": "completed", "param_1": true, "param_2": "blocker_failed", "param_3": "blocker_failed", "param_4": "blocked", "param_5": "dead"}
WITH examined AS (SELECT chain.id AS chain_id, reached.place AS place, reached.job_id AS job_id, chain.outcome != %(outcome_1)s::VARCHAR
  AND reached.on_failure = %(on_failure_1)s::VARCHAR AS fails
  FROM unnest(%(chains)s::UUID[], %(outcomes)s::TEXT[], %(afters)s::UUID[]) AS chain(id, outcome, after)
  JOIN LATERAL (SELECT edge.ctid AS place, edge.job_id AS job_id, edge.on_failure AS on_failure
    FROM job_blocker AS edge
    WHERE edge.blocked_by_chain_id = chain.id
    AND edge.job_id > chain.after
    AND NOT edge.is_resolved
    AND edge.job_id != ALL (%(excluded)s::UUID[])
    AND (chain.outcome = %(outcome_1)s::VARCHAR OR edge.on_failure != %(on_failure_2)s::VARCHAR)
    ORDER BY edge.blocked_by_chain_id, edge.job_id
    LIMIT %(limit)s::INTEGER) AS reached ON true
  LIMIT %(limit)s::INTEGER), waiting AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.id = ANY (array((SELECT examined.job_id
        FROM examined)))), locked AS (SELECT row.id AS id, row.root_id AS root_id, row.status = 'blocked' AS was_blocked
  FROM job AS row
  WHERE row.id = ANY (array_cat(array((SELECT waiting.id
          FROM waiting)), array((SELECT waiting.root_id
          FROM waiting
          WHERE waiting.root_id IS NOT NULL))))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), usable AS (SELECT examined.chain_id AS chain_id, examined.place AS place, examined.job_id AS job_id, examined.fails AS fails
  FROM examined
  WHERE examined.job_id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
              FROM locked))))))), closed AS (UPDATE job_blocker
  SET is_resolved=%(param_1)s
  WHERE job_blocker.ctid = ANY (array((SELECT usable.place
        FROM usable
        WHERE NOT usable.fails)))
  RETURNING job_blocker.job_id), counted AS (SELECT usable.job_id AS job_id, CAST(count(*) FILTER (WHERE NOT usable.fails) AS INTEGER) AS closing, bool_or(usable.fails) AS fails
  FROM usable
  GROUP BY usable.job_id), changed AS (UPDATE job
  SET status=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN 'dead' WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN 'pending' ELSE job.status END, open_blockers=greatest(job.open_blockers - coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0), 0), scheduled_at=CASE WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN greatest(job.scheduled_at, now()) ELSE job.scheduled_at END, completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN now() ELSE job.completed_at END, last_error=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR) ELSE job.last_error END, chain_completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))
    AND job.chain_index = %(chain_index_1)s::INTEGER OR job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN now() ELSE job.chain_completed_at END, changed_xid=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails))) OR job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN pg_current_xact_id() ELSE job.changed_xid END, chain_status=CASE WHEN (job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN 'dead' ELSE job.chain_status END
  WHERE job.id = ANY (array_cat(array((SELECT counted.job_id
          FROM counted)), array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails)))))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), moved AS (SELECT changed.id AS id, changed.status AS status, changed.attempt AS attempt, changed.started_at AS started_at, changed.chain_id AS chain_id, changed.queue AS queue, changed.fairness_key AS fairness_key, changed.type_name AS type_name, changed.input AS input, changed.input_version AS input_version, changed.last_error AS last_error, changed.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM changed
  WHERE changed.id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.was_blocked)))
  AND CAST(changed.status AS TEXT) != %(param_4)s::VARCHAR), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[moved.n] AS anon_1, moved.id AS id, moved.chain_id AS chain_id, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.input AS input, moved.input_version AS input_version, %(param_2)s::VARCHAR AS anon_2, moved.last_error AS last_error, %(param_3)s::VARCHAR AS anon_3, moved.attempt AS attempt
  FROM moved
  WHERE CAST(moved.status AS TEXT) = %(param_5)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id())
SELECT "both".chain_id, "both".job_id, "both".held, "both".status, "both".queue, "both".fairness_key, "both".type_name, "both".attempt, "both".has_waiters
FROM (SELECT moved.chain_id AS chain_id, moved.id AS job_id, false AS held, CAST(moved.status AS TEXT) AS status, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.attempt AS attempt, coalesce((SELECT changed.has_waiters
      FROM changed
      WHERE changed.id = moved.chain_id), moved.has_waiters) AS has_waiters
  FROM moved
  UNION ALL
  SELECT examined.chain_id AS chain_id, examined.job_id AS job_id, NOT (examined.job_id = ANY (array((SELECT locked.id
          FROM locked
          WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
                FROM locked))))))) AS held, CAST(NULL AS TEXT) AS anon_4, CAST(NULL AS TEXT) AS anon__1, CAST(NULL AS TEXT) AS anon__2, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS INTEGER) AS anon__4, CAST(NULL AS BOOLEAN) AS anon__5
  FROM examined) AS "both"

-- unblock_only {"chain_index_1": 0, "excluded": [], "jsonb_build_object_1": "type", "jsonb_build_object_2": "BlockerFailed", "jsonb_build_object_3": "message", "jsonb_build_object_4": "a chain it waited for failed, and it must not run without", "on_failure_1": "fail", "on_failure_2": "wait", "outcome_1": "completed", "param_1": true, "param_2": "blocker_failed", "param_3": "blocker_failed", "param_4": "blocked", "param_5": "dead"}
WITH examined AS (SELECT chain.id AS chain_id, reached.place AS place, reached.job_id AS job_id, chain.outcome != %(outcome_1)s::VARCHAR
  AND reached.on_failure = %(on_failure_1)s::VARCHAR AS fails
  FROM unnest(%(chains)s::UUID[], %(outcomes)s::TEXT[], %(afters)s::UUID[]) AS chain(id, outcome, after)
  JOIN LATERAL (SELECT edge.ctid AS place, edge.job_id AS job_id, edge.on_failure AS on_failure
    FROM job_blocker AS edge
    WHERE edge.blocked_by_chain_id = chain.id
    AND edge.job_id > chain.after
    AND NOT edge.is_resolved
    AND edge.job_id != ALL (%(excluded)s::UUID[])
    AND edge.job_id = ANY (%(ids)s::UUID[])
    AND (chain.outcome = %(outcome_1)s::VARCHAR OR edge.on_failure != %(on_failure_2)s::VARCHAR)
    ORDER BY edge.blocked_by_chain_id, edge.job_id
    LIMIT %(limit)s::INTEGER) AS reached ON true
  LIMIT %(limit)s::INTEGER), waiting AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.id = ANY (array((SELECT examined.job_id
        FROM examined)))), locked AS (SELECT row.id AS id, row.root_id AS root_id, row.status = 'blocked' AS was_blocked
  FROM job AS row
  WHERE row.id = ANY (array_cat(array((SELECT waiting.id
          FROM waiting)), array((SELECT waiting.root_id
          FROM waiting
          WHERE waiting.root_id IS NOT NULL))))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), usable AS (SELECT examined.chain_id AS chain_id, examined.place AS place, examined.job_id AS job_id, examined.fails AS fails
  FROM examined
  WHERE examined.job_id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
              FROM locked))))))), closed AS (UPDATE job_blocker
  SET is_resolved=%(param_1)s
  WHERE job_blocker.ctid = ANY (array((SELECT usable.place
        FROM usable
        WHERE NOT usable.fails)))
  RETURNING job_blocker.job_id), counted AS (SELECT usable.job_id AS job_id, CAST(count(*) FILTER (WHERE NOT usable.fails) AS INTEGER) AS closing, bool_or(usable.fails) AS fails
  FROM usable
  GROUP BY usable.job_id), changed AS (UPDATE job
  SET status=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN 'dead' WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN 'pending' ELSE job.status END, open_blockers=greatest(job.open_blockers - coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0), 0), scheduled_at=CASE WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN greatest(job.scheduled_at, now()) ELSE job.scheduled_at END, completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN now() ELSE job.completed_at END, last_error=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR) ELSE job.last_error END, chain_completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))
    AND job.chain_index = %(chain_index_1)s::INTEGER OR job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN now() ELSE job.chain_completed_at END, changed_xid=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails))) OR job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN pg_current_xact_id() ELSE job.changed_xid END, chain_status=CASE WHEN (job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN 'dead' ELSE job.chain_status END
  WHERE job.id = ANY (array_cat(array((SELECT counted.job_id
          FROM counted)), array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails)))))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), moved AS (SELECT changed.id AS id, changed.status AS status, changed.attempt AS attempt, changed.started_at AS started_at, changed.chain_id AS chain_id, changed.queue AS queue, changed.fairness_key AS fairness_key, changed.type_name AS type_name, changed.input AS input, changed.input_version AS input_version, changed.last_error AS last_error, changed.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM changed
  WHERE changed.id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.was_blocked)))
  AND CAST(changed.status AS TEXT) != %(param_4)s::VARCHAR), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[moved.n] AS anon_1, moved.id AS id, moved.chain_id AS chain_id, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.input AS input, moved.input_version AS input_version, %(param_2)s::VARCHAR AS anon_2, moved.last_error AS last_error, %(param_3)s::VARCHAR AS anon_3, moved.attempt AS attempt
  FROM moved
  WHERE CAST(moved.status AS TEXT) = %(param_5)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id())
SELECT "both".chain_id, "both".job_id, "both".held, "both".status, "both".queue, "both".fairness_key, "both".type_name, "both".attempt, "both".has_waiters
FROM (SELECT moved.chain_id AS chain_id, moved.id AS job_id, false AS held, CAST(moved.status AS TEXT) AS status, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.attempt AS attempt, coalesce((SELECT changed.has_waiters
      FROM changed
      WHERE changed.id = moved.chain_id), moved.has_waiters) AS has_waiters
  FROM moved
  UNION ALL
  SELECT examined.chain_id AS chain_id, examined.job_id AS job_id, NOT (examined.job_id = ANY (array((SELECT locked.id
          FROM locked
          WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
                FROM locked))))))) AS held, CAST(NULL AS TEXT) AS anon_4, CAST(NULL AS TEXT) AS anon__1, CAST(NULL AS TEXT) AS anon__2, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS INTEGER) AS anon__4, CAST(NULL AS BOOLEAN) AS anon__5
  FROM examined) AS "both"

-- unknown_types {}
WITH RECURSIVE lane(queue, fairness_key, priority, scheduled_at, type_name) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at, first.type_name AS type_name
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at, job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority, following.scheduled_at AS scheduled_at, following.type_name AS type_name
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at, job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, CASE WHEN (lane.fairness_key != '') THEN lane.priority ELSE 9 END)
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS following ON true)
SELECT DISTINCT found.type_name
FROM (SELECT oldest.type_name AS type_name
  FROM unnest(%(queues)s::TEXT[]) AS queue(name)
  JOIN LATERAL (SELECT job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = queue.name
    AND job.fairness_key = ''
    AND job.scheduled_at <= now()
    LIMIT 1000) AS oldest ON true
  UNION ALL
  SELECT head.type_name AS type_name
  FROM (SELECT lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority, lane.scheduled_at AS scheduled_at, lane.type_name AS type_name
    FROM lane
    LIMIT 1000) AS head
  WHERE head.fairness_key != ''
  AND head.queue = ANY (%(queues)s::TEXT[])
  AND head.scheduled_at <= now()) AS found
WHERE NOT (found.type_name = ANY (%(types)s::TEXT[]))
AND NOT (EXISTS (SELECT 1
    FROM worker
    WHERE worker.heartbeat_at > now() - %(ttl)s::INTERVAL
    AND found.type_name = ANY (worker.job_types)))

-- unserved_queues {}
WITH RECURSIVE names(queue) AS ((SELECT job.queue AS queue
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue
    LIMIT 1)
  UNION ALL
  SELECT (SELECT job.queue
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue > names.queue
    ORDER BY job.queue
    LIMIT 1) AS anon_1
  FROM names
  WHERE names.queue IS NOT NULL)
SELECT names.queue
FROM names
WHERE names.queue IS NOT NULL
AND CASE WHEN (EXISTS (SELECT 1
    FROM worker
    WHERE worker.heartbeat_at > now() - %(ttl)s::INTERVAL
    AND names.queue = ANY (worker.queues))) THEN false ELSE (SELECT job.queue
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = names.queue
  AND job.scheduled_at <= now()
  LIMIT 1) IS NOT NULL END
ORDER BY names.queue

-- versions {"current_setting_1": "server_version_num", "obj_description_1": "pg_class", "param_1": "job"}
SELECT CAST(current_setting(%(current_setting_1)s::VARCHAR) AS INTEGER) AS server, to_regclass(%(param_1)s::VARCHAR) IS NOT NULL AS present, obj_description(to_regclass(%(param_1)s::VARCHAR) :: oid, %(obj_description_1)s::VARCHAR) AS stamp

-- waiting {}
SELECT job_blocker.blocked_by_chain_id AS chain_id, job_blocker.job_id
FROM job_blocker
WHERE job_blocker.blocked_by_chain_id = ANY (%(chains)s::UUID[])
AND job_blocker.job_id > %(after)s::UUID
AND NOT job_blocker.is_resolved
ORDER BY job_blocker.blocked_by_chain_id, job_blocker.job_id
LIMIT %(limit)s::INTEGER

-- waiting_among {}
SELECT DISTINCT job_blocker.blocked_by_chain_id
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(jobs)s::UUID[])
AND array_position(%(chains)s::UUID[], job_blocker.blocked_by_chain_id) IS NOT NULL
AND NOT job_blocker.is_resolved

-- write_counts {}
SELECT (SELECT job_bulk_write.enqueued
  FROM job_bulk_write
  WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
  AND job_bulk_write.sequence = %(sequence)s::BIGINT) IS NOT NULL AS is_there, count(*) FILTER (WHERE job.chain_completed_at IS NULL) AS open, count(*) FILTER (WHERE job.chain_completed_at IS NOT NULL
  AND coalesce(job.chain_status, job.status) = 'completed') AS completed, count(*) FILTER (WHERE job.chain_completed_at IS NOT NULL
  AND coalesce(job.chain_status, job.status) = 'dead') AS dead, count(*) FILTER (WHERE job.chain_completed_at IS NOT NULL
  AND coalesce(job.chain_status, job.status) = 'cancelled') AS cancelled, coalesce((SELECT job_bulk_write.enqueued
    FROM job_bulk_write
    WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
    AND job_bulk_write.sequence = %(sequence)s::BIGINT), 0) - count(*) AS deleted
FROM job
WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (SELECT CAST(CAST(job_bulk_write.changed_xid AS TEXT) AS BIGINT) AS changed_xid
  FROM job_bulk_write
  WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
  AND job_bulk_write.sequence = %(sequence)s::BIGINT) >> 6
AND job.created_at = (SELECT job_bulk_write.written_at
  FROM job_bulk_write
  WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
  AND job_bulk_write.sequence = %(sequence)s::BIGINT)
AND job.chain_index = 0
