SELECT EXISTS (SELECT job.id
  FROM job
  WHERE job.id = %(job_id)s::UUID) AS is_there, count(*) FILTER (WHERE root.chain_completed_at IS NULL) AS open, count(*) FILTER (WHERE root.chain_completed_at IS NOT NULL
  AND coalesce(root.chain_status, root.status) = 'completed') AS completed, count(*) FILTER (WHERE root.chain_completed_at IS NOT NULL
  AND coalesce(root.chain_status, root.status) = 'dead') AS dead, count(*) FILTER (WHERE root.chain_completed_at IS NOT NULL
  AND coalesce(root.chain_status, root.status) = 'cancelled') AS cancelled
FROM job_blocker
JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
WHERE job_blocker.job_id = %(job_id)s::UUID
