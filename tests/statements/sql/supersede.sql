WITH recorded_attempt AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome)
  SELECT job.id AS id, job.attempt AS attempt, job.leased_by AS leased_by, job.started_at AS started_at, %(param_1)s::VARCHAR AS anon_1
  FROM job
  WHERE job.id = %(job_id)s::UUID
  ON CONFLICT (job_id, attempt) DO NOTHING)
SELECT pg_notify(%(pg_notify_2)s::VARCHAR, CAST(%(job_id)s::UUID AS TEXT)) AS pg_notify_1
