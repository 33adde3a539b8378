SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
