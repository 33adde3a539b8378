SELECT DISTINCT job_blocker.blocked_by_chain_id
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(job_ids)s::UUID[])
