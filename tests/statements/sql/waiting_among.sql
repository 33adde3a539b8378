SELECT DISTINCT job_blocker.blocked_by_chain_id
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(jobs)s::UUID[])
AND job_blocker.blocked_by_chain_id = ANY (%(chains)s::UUID[])
AND NOT job_blocker.is_resolved
