SELECT job.id, job.chain_id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
