SELECT job.id, job.type_name, job.queue, job.attempt, job.leased_by, CAST(clock_timestamp() - job.started_at AS INTERVAL) AS running_for
FROM job
WHERE job.status = 'running'
ORDER BY job.started_at, job.id
LIMIT %(limit)s::INTEGER
