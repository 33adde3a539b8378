SELECT found.what, found.name, found.now, found.rate_limit, found.rate_period, found.rate_burst, found.rate_algorithm, found.rate_tokens, found.rate_starts, found.rate_at
FROM (SELECT 'queue' AS what, queue.name AS name, now() AS now, queue.rate_limit AS rate_limit, queue.rate_period AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, queue.rate_tokens AS rate_tokens, queue.rate_starts AS rate_starts, queue.rate_at AS rate_at
  FROM queue
  WHERE queue.name = ANY (%(queues)s::TEXT[])
  AND queue.rate_limit IS NOT NULL
  UNION ALL
  SELECT 'type' AS what, job_type.type_name AS name, now() AS now, job_type.rate_limit AS rate_limit, job_type.rate_period AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, job_type.rate_tokens AS rate_tokens, job_type.rate_starts AS rate_starts, job_type.rate_at AS rate_at
  FROM job_type
  WHERE job_type.type_name = %(type_name)s::VARCHAR
  AND job_type.rate_limit IS NOT NULL) AS found
ORDER BY found.what, found.name
