SELECT DISTINCT job_blocker.blocked_by_chain_id
FROM job_blocker
WHERE job_blocker.job_id = ANY (%(jobs)s::UUID[])
AND array_position(%(chains)s::UUID[], job_blocker.blocked_by_chain_id) IS NOT NULL
AND NOT job_blocker.is_resolved
