SELECT found.what, found.name, found.fairness_key, found.now, found.rate_limit, found.rate_period, found.rate_burst, found.rate_algorithm, found.tokens, found.starts, found.spent_at
FROM (SELECT 'queue' AS what, queue.name AS name, queue.fairness_key AS fairness_key, now() AS now, queue.rate_limit AS rate_limit, queue.rate_period AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at
  FROM queue
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE queue.rate_limit IS NOT NULL
    AND state.is_type = false
    AND state.name = queue.name
    AND state.fairness_key = queue.fairness_key
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE queue.name = %(queue)s::VARCHAR
  AND queue.fairness_key = ANY (%(fairness_keys)s::TEXT[])
  AND queue.rate_limit IS NOT NULL
  UNION ALL
  SELECT 'type' AS what, job_type.type_name AS name, '' AS fairness_key, now() AS now, job_type.rate_limit AS rate_limit, job_type.rate_period AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, state.tokens AS tokens, state.starts AS starts, state.spent_at AS spent_at
  FROM job_type
  LEFT OUTER JOIN LATERAL (SELECT state.version AS version, CASE WHEN (abs(state.tokens) <= 1e15) THEN state.tokens END AS tokens, CASE WHEN (array_position(state.starts, NULL) IS NULL) THEN state.starts END AS starts, CASE WHEN (state.spent_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (state.spent_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE state.spent_at END AS spent_at, state.ctid AS place
    FROM rate_state AS state
    WHERE job_type.rate_limit IS NOT NULL
    AND state.is_type = true
    AND state.name = job_type.type_name
    AND state.fairness_key = ''
    ORDER BY state.version DESC
    LIMIT 1) AS state ON true
  WHERE job_type.type_name = %(type_name)s::VARCHAR
  AND job_type.rate_limit IS NOT NULL) AS found
ORDER BY found.what, found.name, found.fairness_key
