SELECT job.id, job.status
FROM job
WHERE job.ordering_key = %(ordering_key)s::VARCHAR
AND job.ordering_key IS NOT NULL
AND job.status IN ('blocked', 'pending', 'running')
ORDER BY job.leased_by IS NULL, job.created_at, job.id
LIMIT 1
