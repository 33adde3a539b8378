SELECT job.id, job.status
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
