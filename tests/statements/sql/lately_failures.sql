SELECT newest.job_id, job.type_name, job.status, newest.attempt, newest.outcome, newest.error ->> 'type' AS error_type, left(newest.error ->> 'message', 300) AS error_message, CAST(clock_timestamp() - newest.ended_at AS INTERVAL) AS ago
FROM (SELECT job_attempt.job_id AS job_id, job_attempt.attempt AS attempt, job_attempt.worker_id AS worker_id, job_attempt.started_at AS started_at, job_attempt.ended_at AS ended_at, job_attempt.outcome AS outcome, job_attempt.error AS error, job_attempt.error_fingerprint AS error_fingerprint, job_attempt.changed_xid AS changed_xid
  FROM job_attempt
  ORDER BY job_attempt.changed_xid DESC
  LIMIT %(scan)s::INTEGER) AS newest
JOIN job ON job.id = newest.job_id
WHERE newest.outcome IN ('failed', 'timed_out', 'lost')
ORDER BY newest.changed_xid DESC, newest.ended_at DESC
LIMIT %(limit)s::INTEGER
