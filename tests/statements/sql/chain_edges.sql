(SELECT job_blocker.blocked_by_chain_id, job.chain_id, job_blocker.is_resolved
  FROM job_blocker
  JOIN job ON job.id = job_blocker.job_id
  WHERE job_blocker.job_id = ANY (%(ids)s::UUID[])
  LIMIT %(limit)s::INTEGER)
UNION ALL (SELECT job_blocker.blocked_by_chain_id, job.chain_id, job_blocker.is_resolved
  FROM job_blocker
  JOIN job ON job.id = job_blocker.job_id
  WHERE job.root_id = ANY (%(ids)s::UUID[])
  LIMIT %(limit)s::INTEGER)
UNION ALL (SELECT job_blocker.blocked_by_chain_id, job.chain_id, job_blocker.is_resolved
  FROM job_blocker
  JOIN job ON job.id = job_blocker.job_id
  WHERE job_blocker.blocked_by_chain_id = ANY (%(ids)s::UUID[])
  LIMIT %(limit)s::INTEGER)
