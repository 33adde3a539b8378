DELETE
FROM job_attempt
WHERE job_attempt.job_id = ANY (%(job_ids)s::UUID[])
