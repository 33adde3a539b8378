INSERT INTO job_step (job_id, name, key, kind, attempt, output, started_at, completed_at)
SELECT job.id, %(step_name)s::VARCHAR AS anon_1, %(step_key)s::VARCHAR AS anon_2, CAST(%(param_1)s::VARCHAR AS TEXT) AS anon_3, job.attempt, CAST(%(step_output)s::VARCHAR AS JSONB) AS anon_4, clock_timestamp() - %(took)s AS anon_5, clock_timestamp() AS clock_timestamp_1
FROM job
WHERE job.id = %(job_id)s::UUID
AND job.attempt = %(job_attempt)s::INTEGER
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
AND job.tableoid = CAST(%(table_oid)s::BIGINT AS OID)
AND CAST(to_regclass(%(to_regclass_1)s::VARCHAR) AS OID) = (SELECT companion.oid
  FROM pg_catalog.pg_class AS companion
  JOIN pg_catalog.pg_class AS claimed ON companion.relnamespace = claimed.relnamespace
  WHERE companion.relname = %(relname_1)s::VARCHAR
  AND claimed.oid = CAST(%(table_oid)s::BIGINT AS OID))
FOR NO KEY UPDATE
ON CONFLICT (job_id, name, key) DO
UPDATE
SET kind = excluded.kind, attempt = excluded.attempt, output = excluded.output, started_at = excluded.started_at, completed_at = excluded.completed_at
RETURNING job_step.completed_at AS until, current_setting('application_name') AS session_name
