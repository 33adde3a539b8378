WITH served AS (SELECT each.name AS name, count(*) AS workers
  FROM (SELECT unnest(worker.job_types) AS name
    FROM worker) AS each
  GROUP BY each.name)
SELECT coalesce(job_type.type_name, served.name) AS type_name, job_type.global_concurrency, job_type.rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst, job_type.rate_algorithm, CASE WHEN (job_type.paused_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (job_type.paused_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE job_type.paused_at END AS paused_at, job_type.paused_by, CASE WHEN (job_type.created_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (job_type.created_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE job_type.created_at END AS created_at, CASE WHEN (job_type.updated_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (job_type.updated_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE job_type.updated_at END AS updated_at, coalesce(served.workers, %(coalesce_1)s::INTEGER) AS workers
FROM job_type FULL OUTER JOIN served ON job_type.type_name = served.name
WHERE (%(names)s::TEXT[] IS NULL OR coalesce(job_type.type_name, served.name) = ANY (%(names)s::TEXT[]))
AND (%(after)s::VARCHAR IS NULL OR coalesce(job_type.type_name, served.name) > %(after)s::VARCHAR)
ORDER BY coalesce(job_type.type_name, served.name)
LIMIT %(limit)s::INTEGER
