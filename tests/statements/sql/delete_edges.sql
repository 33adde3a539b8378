DELETE
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(job_ids)s::UUID[])
