SELECT job.id, job.status, job.chain_id, job.has_waiters
FROM job
WHERE job.id = ANY (array((SELECT unnest(ARRAY[meant.id, meant.chain_id]) AS unnest_1
      FROM job AS meant
      WHERE meant.id = ANY (%(param_1)s::UUID[])
      UNION ALL
      SELECT job_blocker.blocked_by_chain_id
      FROM job_blocker
      WHERE job_blocker.job_id = ANY (%(param_1)s::UUID[])
      AND NOT job_blocker.is_resolved)))
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE
