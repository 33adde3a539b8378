SELECT job.id, job.root_id
FROM job
WHERE job.status = 'pending'
AND job.expires_at IS NOT NULL
AND job.expires_at <= now()
AND job.id != ALL (%(excluded)s::UUID[])
ORDER BY job.expires_at
LIMIT %(limit)s::INTEGER
