SELECT root.id, root.type_name, last.status, CASE WHEN (last.status = 'completed') THEN last.output END AS anon_1, CASE WHEN (last.status != 'completed') THEN last.last_error END AS anon_2
FROM job_blocker
JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
JOIN job AS last ON last.id = coalesce((SELECT later.id
    FROM job AS later
    WHERE later.root_id = root.id
    ORDER BY later.chain_index DESC
    LIMIT 1), root.id)
WHERE job_blocker.job_id = %(job_id)s::UUID
ORDER BY job_blocker.index
