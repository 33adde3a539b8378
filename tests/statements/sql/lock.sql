SELECT job.id, job.status
FROM job
WHERE job.id = ANY (%(param_1)s::UUID[])
ORDER BY job.id
FOR NO KEY UPDATE
