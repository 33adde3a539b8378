SELECT count(DISTINCT waiting.job_id) AS waiting, count(DISTINCT waiting.blocked_by_chain_id) AS chains, (array_agg(waiting.blocked_by_chain_id))[%(array_agg_1)s::INTEGER] AS chain_id
FROM (SELECT job_blocker.job_id AS job_id, job_blocker.blocked_by_chain_id AS blocked_by_chain_id
  FROM job_blocker
  WHERE job_blocker.blocked_by_chain_id = ANY (array((SELECT job.chain_id
        FROM job
        WHERE job.id = ANY (array((SELECT dead_letter.job_id
              FROM dead_letter
              WHERE dead_letter.resolution IS DISTINCT
              FROM 'redriven'
              ORDER BY dead_letter.id DESC
              LIMIT %(limit)s::INTEGER)))
        AND CAST(job.status AS TEXT) = 'dead')))
  AND NOT job_blocker.is_resolved
  LIMIT %(limit)s::INTEGER) AS waiting
