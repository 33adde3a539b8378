SELECT limits.is_type, limits.name, limits.max_running, limits.key_max_running, limits.tokens, limits.per_second
FROM (SELECT of_queues.is_type AS is_type, of_queues.name AS name, of_queues.max_running AS max_running, of_queues.key_max_running AS key_max_running, of_queues.tokens AS tokens, of_queues.per_second AS per_second
  FROM (SELECT false AS is_type, queue.name AS name, queue.max_running AS max_running, queue.key_max_running AS key_max_running, CASE WHEN (queue.rate_limit IS NOT NULL) THEN least(CAST(coalesce(queue.rate_burst, queue.rate_limit) AS DOUBLE PRECISION), coalesce(queue.rate_tokens + CAST(greatest(EXTRACT(epoch
              FROM now() - queue.rate_at), 0) AS DOUBLE PRECISION) * CAST(queue.rate_limit / CAST(EXTRACT(epoch
              FROM queue.rate_period) AS NUMERIC) AS DOUBLE PRECISION), CAST(coalesce(queue.rate_burst, queue.rate_limit) AS DOUBLE PRECISION))) END AS tokens, CAST(queue.rate_limit / CAST(EXTRACT(epoch
          FROM queue.rate_period) AS NUMERIC) AS DOUBLE PRECISION) AS per_second
    FROM queue
    WHERE queue.name = ANY (%(queues)s::TEXT[])
    FOR NO KEY UPDATE SKIP LOCKED) AS of_queues
  UNION ALL
  SELECT of_type.is_type AS is_type, of_type.name AS name, of_type.max_running AS max_running, of_type.key_max_running AS key_max_running, of_type.tokens AS tokens, of_type.per_second AS per_second
  FROM (SELECT true AS is_type, job_type.type_name AS name, job_type.max_running AS max_running, CAST(NULL AS INTEGER) AS key_max_running, CASE WHEN (job_type.rate_limit IS NOT NULL) THEN least(CAST(coalesce(job_type.rate_burst, job_type.rate_limit) AS DOUBLE PRECISION), coalesce(job_type.rate_tokens + CAST(greatest(EXTRACT(epoch
              FROM now() - job_type.rate_at), 0) AS DOUBLE PRECISION) * CAST(job_type.rate_limit / CAST(EXTRACT(epoch
              FROM job_type.rate_period) AS NUMERIC) AS DOUBLE PRECISION), CAST(coalesce(job_type.rate_burst, job_type.rate_limit) AS DOUBLE PRECISION))) END AS tokens, CAST(job_type.rate_limit / CAST(EXTRACT(epoch
          FROM job_type.rate_period) AS NUMERIC) AS DOUBLE PRECISION) AS per_second
    FROM job_type
    WHERE job_type.type_name = %(type_name)s::VARCHAR
    FOR NO KEY UPDATE SKIP LOCKED) AS of_type) AS limits
