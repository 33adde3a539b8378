SELECT limits.is_type, limits.name, limits.max_running, limits.key_max_running, limits.rate_limit, limits.rate_period, limits.rate_burst, limits.rate_algorithm, limits.rate_tokens, limits.rate_starts, limits.rate_at, limits.now
FROM (SELECT of_queues.is_type AS is_type, of_queues.name AS name, of_queues.max_running AS max_running, of_queues.key_max_running AS key_max_running, of_queues.rate_limit AS rate_limit, of_queues.rate_period AS rate_period, of_queues.rate_burst AS rate_burst, of_queues.rate_algorithm AS rate_algorithm, of_queues.rate_tokens AS rate_tokens, of_queues.rate_starts AS rate_starts, of_queues.rate_at AS rate_at, of_queues.now AS now
  FROM (SELECT false AS is_type, queue.name AS name, queue.max_running AS max_running, queue.key_max_running AS key_max_running, queue.rate_limit AS rate_limit, queue.rate_period AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, queue.rate_tokens AS rate_tokens, queue.rate_starts AS rate_starts, queue.rate_at AS rate_at, now() AS now
    FROM queue
    WHERE queue.name = ANY (%(queues)s::TEXT[])
    FOR NO KEY UPDATE SKIP LOCKED) AS of_queues
  UNION ALL
  SELECT of_type.is_type AS is_type, of_type.name AS name, of_type.max_running AS max_running, of_type.key_max_running AS key_max_running, of_type.rate_limit AS rate_limit, of_type.rate_period AS rate_period, of_type.rate_burst AS rate_burst, of_type.rate_algorithm AS rate_algorithm, of_type.rate_tokens AS rate_tokens, of_type.rate_starts AS rate_starts, of_type.rate_at AS rate_at, of_type.now AS now
  FROM (SELECT true AS is_type, job_type.type_name AS name, job_type.max_running AS max_running, CAST(NULL AS INTEGER) AS key_max_running, job_type.rate_limit AS rate_limit, job_type.rate_period AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, job_type.rate_tokens AS rate_tokens, job_type.rate_starts AS rate_starts, job_type.rate_at AS rate_at, now() AS now
    FROM job_type
    WHERE job_type.type_name = %(type_name)s::VARCHAR
    FOR NO KEY UPDATE SKIP LOCKED) AS of_type) AS limits
