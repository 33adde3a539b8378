SELECT given.type_name, given.key, newest.id, newest.queue, newest.fairness_key
FROM unnest(%(type_names)s::TEXT[], %(keys)s::TEXT[]) AS given(type_name, key)
JOIN LATERAL (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key
  FROM job
  WHERE job.chain_type_name = given.type_name
  AND job.deduplication_key = given.key
  AND job.deduplication_key IS NOT NULL
  AND job.chain_index = 0
  AND (job.chain_completed_at IS NULL OR CAST(%(window)s AS INTERVAL) IS NULL OR job.created_at >= now() - CAST(%(window)s AS INTERVAL))
  ORDER BY job.chain_completed_at IS NOT NULL, job.created_at DESC
  LIMIT 1) AS newest ON true
