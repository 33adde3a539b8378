SELECT CAST(job_attempt.job_id AS TEXT) AS job_id, job_attempt.attempt AS attempt, CAST(job_attempt.worker_id AS TEXT) AS worker_id, job_attempt.started_at AS started_at, job_attempt.ended_at AS ended_at, CAST(job_attempt.outcome AS TEXT) AS outcome, CAST(job_attempt.error AS TEXT) AS error, CAST(job_attempt.error_fingerprint AS TEXT) AS error_fingerprint, CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
FROM job_attempt
WHERE job_attempt.changed_xid >= CAST(%(param_1)s AS xid8)
AND job_attempt.changed_xid < CAST(%(param_2)s AS xid8)
