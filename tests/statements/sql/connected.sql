WITH RECURSIVE chain(id) AS (SELECT job.id AS id
  FROM job
  WHERE job.id = ANY (%(ids)s::UUID[]) UNION
  SELECT blocker.id AS id
  FROM chain
  JOIN LATERAL (SELECT job_blocker.blocked_by_chain_id AS id
    FROM job_blocker
    WHERE job_blocker.job_id = chain.id
    UNION ALL
    SELECT job_blocker.blocked_by_chain_id AS id
    FROM job
    JOIN job_blocker ON job_blocker.job_id = job.id
    WHERE job.root_id = chain.id) AS blocker ON true)
SELECT chain.id
FROM chain
