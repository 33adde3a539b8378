SELECT CAST(job_attempt.job_id AS TEXT) AS job_id, job_attempt.attempt AS attempt, CAST(job_attempt.worker_id AS TEXT) AS worker_id, job_attempt.started_at AS started_at, job_attempt.ended_at AS ended_at, CAST(job_attempt.outcome AS TEXT) AS outcome, CASE WHEN (job_attempt.error IS NOT NULL
  AND NOT (EXISTS (SELECT 1
      FROM job
      WHERE job.id = job_attempt.job_id
      AND NOT (job.type_name LIKE ANY (%(param_1)s::TEXT[]))))) THEN CAST(jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, CAST(job_attempt.error AS JSONB) -> 'type', %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR)) AS TEXT) ELSE CAST(job_attempt.error AS TEXT) END AS error, CAST(job_attempt.error_fingerprint AS TEXT) AS error_fingerprint, CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
FROM job_attempt
