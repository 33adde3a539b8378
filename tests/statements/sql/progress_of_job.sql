SELECT CAST(CASE WHEN (((worker.progress -> CAST(job.id AS TEXT)) ->> 'attempt') = CAST(job.attempt AS TEXT)) THEN worker.progress -> CAST(job.id AS TEXT) END AS JSONB) AS progress, worker.heartbeat_at
FROM job
LEFT OUTER JOIN worker ON worker.id = job.leased_by
AND job.status = 'running'
WHERE job.id = %(job_id)s::UUID
