SELECT job.id, job.chain_id, job.type_name, job.status, job.has_waiters, job.chain_completed_at IS NOT NULL AS ended, coalesce(job.chain_status, job.status) AS outcome
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE
