INSERT INTO job_type (type_name, global_concurrency, rate_limit, rate_period, rate_burst, rate_algorithm)
VALUES (%(type_name)s::VARCHAR, %(global_concurrency)s::INTEGER, %(rate_limit)s::INTEGER, %(rate_period)s::INTERVAL, %(rate_burst)s::INTEGER, %(rate_algorithm)s::VARCHAR)
ON CONFLICT (type_name) DO
UPDATE
SET global_concurrency = excluded.global_concurrency, rate_limit = excluded.rate_limit, rate_period = excluded.rate_period, rate_burst = excluded.rate_burst, rate_algorithm = excluded.rate_algorithm, updated_at = now()
WHERE job_type.global_concurrency IS DISTINCT
FROM excluded.global_concurrency OR job_type.rate_limit IS DISTINCT
FROM excluded.rate_limit OR job_type.rate_period IS DISTINCT
FROM excluded.rate_period OR job_type.rate_burst IS DISTINCT
FROM excluded.rate_burst OR job_type.rate_algorithm IS DISTINCT
FROM excluded.rate_algorithm
RETURNING job_type.type_name AS name, job_type.created_at = job_type.updated_at AS is_new
