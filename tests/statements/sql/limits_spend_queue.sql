UPDATE queue
SET rate_tokens=((%(tokens)s::DOUBLE PRECISION[])[array_position(%(names)s::TEXT[], queue.name)]), rate_at=now(), rate_starts=CAST((%(starts)s::TEXT[])[array_position(%(names)s::TEXT[], queue.name)] AS BIGINT[])
WHERE queue.name = ANY (%(names)s::TEXT[])
