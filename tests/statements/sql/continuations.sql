SELECT job.id, job.chain_id
FROM job
WHERE job.root_id = ANY (%(ids)s::UUID[])
ORDER BY job.id
