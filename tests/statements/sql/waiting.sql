SELECT job_blocker.blocked_by_chain_id AS chain_id, job_blocker.job_id
FROM job_blocker
WHERE job_blocker.blocked_by_chain_id = ANY (%(chains)s::UUID[])
AND job_blocker.job_id > %(after)s::UUID
AND NOT job_blocker.is_resolved
ORDER BY job_blocker.blocked_by_chain_id, job_blocker.job_id
LIMIT %(limit)s::INTEGER
