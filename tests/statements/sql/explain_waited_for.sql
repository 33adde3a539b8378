SELECT root.id AS chain_id, CASE WHEN (root.chain_completed_at IS NOT NULL) THEN coalesce(root.chain_status, root.status) END AS outcome, coalesce((SELECT later.id
    FROM job AS later
    WHERE later.root_id = root.id
    ORDER BY later.chain_index DESC
    LIMIT 1), root.id) AS last_job_id
FROM job_blocker
JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
WHERE job_blocker.job_id = %(job_id)s::UUID
AND NOT job_blocker.is_resolved
ORDER BY root.chain_completed_at IS NULL, job_blocker.index
LIMIT %(limit)s::INTEGER
