WITH picked AS (SELECT job.id AS id
  FROM job
  WHERE job.id = ANY (%(ids)s::UUID[])
  AND CAST(job.status AS TEXT) = 'pending'
  FOR NO KEY UPDATE SKIP LOCKED), claimed AS (UPDATE job
  SET status='running', started_at=now(), attempt=(job.attempt + %(attempt_1)s::INTEGER), leased_by=%(worker_id)s::VARCHAR, leased_until=(now() + job.timeout + %(grace)s), changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT picked.id
        FROM picked)))
  RETURNING job.id, job.type_name, job.queue, job.fairness_key, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.input, job.input_version, job.attempt, job.max_attempts, job.timeout, least(greatest(job.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS created_at, job.scheduled_at, job.started_at, job.trace_context, job.chain_trace_context, job.ordering_key, job.rate_cost, CASE WHEN (job.attempt > 1
    AND pg_column_size(job.last_error) <= 131072) THEN job.last_error END AS last_error, CASE WHEN (job.attempt > 1) THEN (SELECT least(greatest(job_attempt.ended_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS least_1
    FROM job_attempt
    WHERE job_attempt.job_id = job.id
    AND job_attempt.attempt = job.attempt - 1) END AS last_attempt_ended_at)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, claimed.id, claimed.type_name, claimed.queue, claimed.fairness_key, claimed.priority, claimed.chain_id, claimed.chain_type_name, claimed.chain_index, claimed.input, claimed.input_version, claimed.attempt, claimed.max_attempts, claimed.timeout, claimed.created_at, claimed.scheduled_at, claimed.started_at, claimed.trace_context, claimed.chain_trace_context, claimed.ordering_key, claimed.rate_cost, claimed.last_error, claimed.last_attempt_ended_at
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN claimed ON true
