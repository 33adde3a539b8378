SELECT job.id
FROM job
WHERE job.has_waiters
AND job.chain_completed_at IS NOT NULL
AND job.id > %(after)s::UUID
ORDER BY job.id
LIMIT %(limit)s::INTEGER
