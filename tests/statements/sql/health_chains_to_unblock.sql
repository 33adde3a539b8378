SELECT count(*) AS chains_to_unblock, min(found.chain_completed_at) AS oldest_at
FROM (SELECT job.chain_completed_at AS chain_completed_at
  FROM job
  WHERE job.has_waiters
  AND job.chain_completed_at IS NOT NULL
  LIMIT %(limit)s::INTEGER) AS found
