WITH served AS (SELECT each.name AS name, count(*) AS workers
  FROM (SELECT unnest(worker.job_types) AS name
    FROM worker) AS each
  GROUP BY each.name)
SELECT coalesce(job_type.type_name, served.name) AS type_name, job_type.max_running, job_type.rate_limit, job_type.rate_period, job_type.rate_burst, job_type.rate_algorithm, job_type.paused_at, job_type.paused_by, job_type.created_at, job_type.updated_at, coalesce(served.workers, %(coalesce_1)s::INTEGER) AS workers
FROM job_type FULL OUTER JOIN served ON job_type.type_name = served.name
WHERE %(names)s::TEXT[] IS NULL OR coalesce(job_type.type_name, served.name) = ANY (%(names)s::TEXT[])
ORDER BY coalesce(job_type.type_name, served.name)
LIMIT %(limit)s::INTEGER
