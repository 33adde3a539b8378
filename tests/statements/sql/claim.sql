WITH picked AS (SELECT taken.id AS id
  FROM unnest(%(late_ids)s::UUID[], CAST(%(late_xids)s::TEXT[] AS xid8[])) AS late(id, xid)
  JOIN LATERAL (SELECT job.id AS id
    FROM job
    WHERE job.id = late.id
    AND job.changed_xid = late.xid
    AND CAST(job.status AS TEXT) = 'pending'
    AND job.scheduled_at <= now()
    AND job.type_name = ANY (%(types)s::TEXT[])
    AND coalesce(job.input_version <= (%(versions)s::INTEGER[])[array_position(%(version_types)s::TEXT[], job.type_name)], true)
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
        ORDER BY first.ordering_key, first.created_at, first.id
        LIMIT 1))
    FOR NO KEY UPDATE SKIP LOCKED) AS taken ON true
  UNION ALL
  SELECT in_segment.id AS id
  FROM (SELECT row.first AS first, row.last AS last, row.quota AS quota, row.first_type AS first_type, row.last_type AS last_type, (%(types)s::TEXT[])[row.first_type:row.last_type] AS types
    FROM unnest(%(segment_first)s::INTEGER[], %(segment_last)s::INTEGER[], %(segment_quota)s::INTEGER[], %(segment_first_type)s::INTEGER[], %(segment_last_type)s::INTEGER[]) AS row(first, last, quota, first_type, last_type)
    LIMIT ALL OFFSET 0) AS segment
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
      AND job.type_name = ANY (segment.types)
      AND coalesce(job.input_version <= (%(versions)s::INTEGER[])[array_position(%(version_types)s::TEXT[], job.type_name)], true)
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
          ORDER BY first.ordering_key, first.created_at, first.id
          LIMIT 1))
      AND (job.scheduled_at, job.id) > (lane.cursor_at, lane.cursor_id)
      AND job.id != ALL (%(apart)s::UUID[])
      ORDER BY job.scheduled_at, job.id
      LIMIT segment.quota
      FOR NO KEY UPDATE SKIP LOCKED) AS probe ON true
    LIMIT segment.quota) AS in_segment ON true
  LIMIT %(limit)s::INTEGER), claimed AS (UPDATE job
  SET status='running', started_at=now(), attempt=(job.attempt + %(attempt_1)s::INTEGER), leased_by=%(worker_id)s::VARCHAR, leased_until=(least(now() + job.timeout, job.deadline) + %(grace)s), changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT picked.id
        FROM picked)))
  RETURNING job.id, job.type_name, job.queue, job.fairness_key, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.input, job.input_version, job.attempt, job.max_attempts, job.timeout, least(greatest(job.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS created_at, job.scheduled_at, job.started_at, job.trace_context, job.chain_trace_context, job.ordering_key, job.rate_cost, job.deadline, CASE WHEN (job.attempt > 1
    AND pg_column_size(job.last_error) <= 131072) THEN job.last_error END AS last_error, CASE WHEN (job.attempt > 1) THEN (SELECT least(greatest(job_attempt.ended_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS least_1
    FROM job_attempt
    WHERE job_attempt.job_id = job.id
    AND job_attempt.attempt = job.attempt - 1) END AS last_attempt_ended_at, job.tableoid AS table_oid)
SELECT now() AS now, claimed.id, claimed.type_name, claimed.queue, claimed.fairness_key, claimed.priority, claimed.chain_id, claimed.chain_type_name, claimed.chain_index, claimed.input, claimed.input_version, claimed.attempt, claimed.max_attempts, claimed.timeout, claimed.created_at, claimed.scheduled_at, claimed.started_at, claimed.trace_context, claimed.chain_trace_context, claimed.ordering_key, claimed.rate_cost, claimed.deadline, claimed.last_error, claimed.last_attempt_ended_at, claimed.table_oid
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN claimed ON true
