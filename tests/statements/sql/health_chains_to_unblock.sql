SELECT count(*) AS unsettled, min(found.chain_completed_at) AS oldest_at
FROM (SELECT job.chain_completed_at AS chain_completed_at
  FROM job
  WHERE job.is_awaited
  AND job.chain_completed_at IS NOT NULL
  LIMIT %(limit)s::INTEGER) AS found
