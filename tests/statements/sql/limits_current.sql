SELECT limits.is_type, limits.name, limits.fairness_key, limits.global_concurrency, limits.concurrency_per_key, limits.rate_limit, limits.rate_period, limits.rate_burst, limits.rate_algorithm, limits.tokens, limits.starts, limits.spent_at, limits.now
FROM (SELECT false AS is_type, queue.name AS name, queue.fairness_key AS fairness_key, queue.global_concurrency AS global_concurrency, queue.concurrency_per_key AS concurrency_per_key, queue.rate_limit AS rate_limit, CASE WHEN (queue.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.rate_period END AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at, now() AS now
  FROM queue
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE queue.rate_limit IS NOT NULL
    AND state.is_type = false
    AND state.name = queue.name
    AND state.fairness_key = queue.fairness_key
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE coalesce(queue.rate_limit, queue.global_concurrency, queue.concurrency_per_key) IS NOT NULL
  UNION ALL
  SELECT true AS is_type, job_type.type_name AS name, '' AS fairness_key, job_type.global_concurrency AS global_concurrency, CAST(NULL AS INTEGER) AS concurrency_per_key, job_type.rate_limit AS rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at, now() AS now
  FROM job_type
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE job_type.rate_limit IS NOT NULL
    AND state.is_type = true
    AND state.name = job_type.type_name
    AND state.fairness_key = ''
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE coalesce(job_type.rate_limit, job_type.global_concurrency) IS NOT NULL) AS limits
ORDER BY limits.is_type, limits.name, limits.fairness_key
LIMIT %(limit)s::INTEGER
