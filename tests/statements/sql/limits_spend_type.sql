UPDATE job_type
SET rate_tokens=((%(tokens)s::DOUBLE PRECISION[])[array_position(%(names)s::TEXT[], job_type.type_name)]), rate_at=now(), rate_starts=CAST((%(starts)s::TEXT[])[array_position(%(names)s::TEXT[], job_type.type_name)] AS BIGINT[])
WHERE job_type.type_name = ANY (%(names)s::TEXT[])
