SELECT found.what, found.name, found.tokens, found.per_second
FROM (SELECT 'queue' AS what, queue.name AS name, CASE WHEN (queue.rate_limit IS NOT NULL) THEN least(CAST(coalesce(queue.rate_burst, queue.rate_limit) AS DOUBLE PRECISION), coalesce(queue.rate_tokens + CAST(greatest(EXTRACT(epoch
            FROM now() - queue.rate_at), 0) AS DOUBLE PRECISION) * CAST(queue.rate_limit / CAST(EXTRACT(epoch
            FROM queue.rate_period) AS NUMERIC) AS DOUBLE PRECISION), CAST(coalesce(queue.rate_burst, queue.rate_limit) AS DOUBLE PRECISION))) END AS tokens, CAST(queue.rate_limit / CAST(EXTRACT(epoch
        FROM queue.rate_period) AS NUMERIC) AS DOUBLE PRECISION) AS per_second
  FROM queue
  WHERE queue.name = ANY (%(queues)s::TEXT[])
  AND queue.rate_limit IS NOT NULL
  UNION ALL
  SELECT 'type' AS what, job_type.type_name AS name, CASE WHEN (job_type.rate_limit IS NOT NULL) THEN least(CAST(coalesce(job_type.rate_burst, job_type.rate_limit) AS DOUBLE PRECISION), coalesce(job_type.rate_tokens + CAST(greatest(EXTRACT(epoch
            FROM now() - job_type.rate_at), 0) AS DOUBLE PRECISION) * CAST(job_type.rate_limit / CAST(EXTRACT(epoch
            FROM job_type.rate_period) AS NUMERIC) AS DOUBLE PRECISION), CAST(coalesce(job_type.rate_burst, job_type.rate_limit) AS DOUBLE PRECISION))) END AS tokens, CAST(job_type.rate_limit / CAST(EXTRACT(epoch
        FROM job_type.rate_period) AS NUMERIC) AS DOUBLE PRECISION) AS per_second
  FROM job_type
  WHERE job_type.type_name = %(type_name)s::VARCHAR
  AND job_type.rate_limit IS NOT NULL) AS found
ORDER BY found.what, found.name
