SELECT job.id, job.type_name, job.queue, job.attempt, job.leased_by, CAST(clock_timestamp() - job.started_at AS INTERVAL) AS running_for, CAST(CASE WHEN (((worker.progress -> CAST(job.id AS TEXT)) ->> 'attempt') = CAST(job.attempt AS TEXT)) THEN worker.progress -> CAST(job.id AS TEXT) END AS JSONB) AS progress, worker.heartbeat_at
FROM job
LEFT OUTER JOIN worker ON worker.id = job.leased_by
WHERE job.status = 'running'
ORDER BY job.started_at, job.id
LIMIT %(limit)s::INTEGER
