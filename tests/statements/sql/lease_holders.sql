SELECT job.id, job.status, job.attempt, job.leased_by
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
