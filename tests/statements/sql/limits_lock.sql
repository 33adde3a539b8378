SELECT limits.is_type, limits.name, limits.fairness_key, limits.global_concurrency, limits.concurrency_per_key, limits.rate_limit, limits.rate_period, limits.rate_burst, limits.tokens, limits.spent_at, limits.version, limits.now
FROM (SELECT of_queues.is_type AS is_type, of_queues.name AS name, of_queues.fairness_key AS fairness_key, of_queues.global_concurrency AS global_concurrency, of_queues.concurrency_per_key AS concurrency_per_key, of_queues.rate_limit AS rate_limit, of_queues.rate_period AS rate_period, of_queues.rate_burst AS rate_burst, of_queues.tokens AS tokens, of_queues.spent_at AS spent_at, of_queues.version AS version, of_queues.now AS now
  FROM (SELECT false AS is_type, queue.name AS name, queue.fairness_key AS fairness_key, queue.global_concurrency AS global_concurrency, queue.concurrency_per_key AS concurrency_per_key, queue.rate_limit AS rate_limit, queue.rate_period AS rate_period, queue.rate_burst AS rate_burst, state.tokens AS tokens, state.spent_at AS spent_at, state.version AS version, now() AS now
    FROM queue
    LEFT OUTER JOIN LATERAL (SELECT state.version AS version, state.tokens AS tokens, state.spent_at AS spent_at
      FROM rate_state AS state
      WHERE queue.rate_limit IS NOT NULL
      AND state.is_type = false
      AND state.name = queue.name
      AND state.fairness_key = queue.fairness_key
      ORDER BY state.version DESC
      LIMIT 1) AS state ON true
    WHERE queue.name = %(queue)s::VARCHAR
    AND queue.fairness_key = ANY (%(fairness_keys)s::TEXT[])
    FOR NO KEY UPDATE OF queue SKIP LOCKED) AS of_queues
  UNION ALL
  SELECT of_type.is_type AS is_type, of_type.name AS name, of_type.fairness_key AS fairness_key, of_type.global_concurrency AS global_concurrency, of_type.concurrency_per_key AS concurrency_per_key, of_type.rate_limit AS rate_limit, of_type.rate_period AS rate_period, of_type.rate_burst AS rate_burst, of_type.tokens AS tokens, of_type.spent_at AS spent_at, of_type.version AS version, of_type.now AS now
  FROM (SELECT true AS is_type, job_type.type_name AS name, '' AS fairness_key, job_type.global_concurrency AS global_concurrency, CAST(NULL AS INTEGER) AS concurrency_per_key, job_type.rate_limit AS rate_limit, job_type.rate_period AS rate_period, job_type.rate_burst AS rate_burst, state.tokens AS tokens, state.spent_at AS spent_at, state.version AS version, now() AS now
    FROM job_type
    LEFT OUTER JOIN LATERAL (SELECT state.version AS version, state.tokens AS tokens, state.spent_at AS spent_at
      FROM rate_state AS state
      WHERE job_type.rate_limit IS NOT NULL
      AND state.is_type = true
      AND state.name = job_type.type_name
      AND state.fairness_key = ''
      ORDER BY state.version DESC
      LIMIT 1) AS state ON true
    WHERE job_type.type_name = %(type_name)s::VARCHAR
    FOR NO KEY UPDATE OF job_type SKIP LOCKED) AS of_type) AS limits
