SELECT job.id, job.type_name, job.status, job.attempt, job.leased_by
FROM job
WHERE job.id = any(%(ids)s::UUID[])
