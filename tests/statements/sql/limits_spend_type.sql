UPDATE job_type
SET rate_tokens=(CASE WHEN (job_type.rate_limit IS NOT NULL) THEN least(CAST(coalesce(job_type.rate_burst, job_type.rate_limit) AS DOUBLE PRECISION), coalesce(job_type.rate_tokens + CAST(greatest(EXTRACT(epoch
            FROM now() - job_type.rate_at), 0) AS DOUBLE PRECISION) * CAST(job_type.rate_limit / CAST(EXTRACT(epoch
            FROM job_type.rate_period) AS NUMERIC) AS DOUBLE PRECISION), CAST(coalesce(job_type.rate_burst, job_type.rate_limit) AS DOUBLE PRECISION))) END - (%(counts)s::INTEGER[])[array_position(%(names)s::TEXT[], job_type.type_name)]), rate_at=greatest(job_type.rate_at, now())
WHERE job_type.type_name = ANY (%(names)s::TEXT[])
AND job_type.rate_limit IS NOT NULL
