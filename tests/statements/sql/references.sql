SELECT job_blocker.blocked_by_chain_id AS chain_id, job_blocker.job_id
FROM job_blocker
WHERE job_blocker.blocked_by_chain_id = ANY (%(ids)s::UUID[])
AND NOT (EXISTS (SELECT own
    FROM unnest(%(job_ids)s::UUID[]) AS own
    WHERE own = job_blocker.job_id))
ORDER BY job_blocker.blocked_by_chain_id, job_blocker.job_id
LIMIT %(limit)s::INTEGER
