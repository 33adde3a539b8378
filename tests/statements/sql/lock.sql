SELECT job.id, job.status, job.chain_id, job.has_waiters
FROM job
WHERE job.id = ANY (array((SELECT unnest(ARRAY[meant.id, meant.chain_id]) AS unnest_1
      FROM job AS meant
      WHERE meant.id = ANY (%(param_1)s::UUID[]))))
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE
