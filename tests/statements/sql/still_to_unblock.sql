SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.has_waiters
AND job.chain_completed_at IS NOT NULL
