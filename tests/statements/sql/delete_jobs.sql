DELETE
FROM job
WHERE job.id = ANY (%(job_ids)s::UUID[])
RETURNING job.id, job.status, job.chain_id, job.has_waiters
