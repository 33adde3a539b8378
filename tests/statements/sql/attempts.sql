SELECT job_attempt.job_id, job_attempt.attempt, job_attempt.worker_id, job_attempt.started_at, job_attempt.ended_at, job_attempt.outcome, job_attempt.error, job_attempt.error_fingerprint, job_attempt.changed_xid
FROM job_attempt
WHERE job_attempt.job_id = %(job_id_1)s::UUID
AND job_attempt.attempt < %(attempt_1)s::INTEGER
ORDER BY job_attempt.attempt DESC
LIMIT %(param_1)s::INTEGER
