INSERT INTO queue (name, fairness_key, weight, concurrency_per_key, global_concurrency, rate_limit, rate_period, rate_burst, rate_algorithm, retry_base, retry_factor, retry_cap, retain_completed, retain_cancelled, retain_dead)
VALUES (%(name)s::VARCHAR, %(fairness_key)s::VARCHAR, %(weight)s::SMALLINT, %(concurrency_per_key)s::INTEGER, %(global_concurrency)s::INTEGER, %(rate_limit)s::INTEGER, %(rate_period)s::INTERVAL, %(rate_burst)s::INTEGER, %(rate_algorithm)s::VARCHAR, %(retry_base)s::INTERVAL, %(retry_factor)s, %(retry_cap)s::INTERVAL, %(retain_completed)s::INTERVAL, %(retain_cancelled)s::INTERVAL, %(retain_dead)s::INTERVAL)
ON CONFLICT (name, fairness_key) DO
UPDATE
SET weight = excluded.weight, concurrency_per_key = excluded.concurrency_per_key, global_concurrency = excluded.global_concurrency, rate_limit = excluded.rate_limit, rate_period = excluded.rate_period, rate_burst = excluded.rate_burst, rate_algorithm = excluded.rate_algorithm, retry_base = excluded.retry_base, retry_factor = excluded.retry_factor, retry_cap = excluded.retry_cap, retain_completed = excluded.retain_completed, retain_cancelled = excluded.retain_cancelled, retain_dead = excluded.retain_dead, updated_at = now()
WHERE queue.weight IS DISTINCT
FROM excluded.weight OR queue.concurrency_per_key IS DISTINCT
FROM excluded.concurrency_per_key OR queue.global_concurrency IS DISTINCT
FROM excluded.global_concurrency OR queue.rate_limit IS DISTINCT
FROM excluded.rate_limit OR queue.rate_period IS DISTINCT
FROM excluded.rate_period OR queue.rate_burst IS DISTINCT
FROM excluded.rate_burst OR queue.rate_algorithm IS DISTINCT
FROM excluded.rate_algorithm OR queue.retry_base IS DISTINCT
FROM excluded.retry_base OR queue.retry_factor IS DISTINCT
FROM excluded.retry_factor OR queue.retry_cap IS DISTINCT
FROM excluded.retry_cap OR queue.retain_completed IS DISTINCT
FROM excluded.retain_completed OR queue.retain_cancelled IS DISTINCT
FROM excluded.retain_cancelled OR queue.retain_dead IS DISTINCT
FROM excluded.retain_dead
RETURNING queue.name AS name, queue.created_at = queue.updated_at AS is_new
