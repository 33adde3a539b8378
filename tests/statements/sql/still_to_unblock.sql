SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.is_awaited
AND job.chain_completed_at IS NOT NULL
