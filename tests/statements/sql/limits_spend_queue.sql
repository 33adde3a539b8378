UPDATE queue
SET rate_tokens=(CASE WHEN (queue.rate_limit IS NOT NULL) THEN least(CAST(coalesce(queue.rate_burst, queue.rate_limit) AS DOUBLE PRECISION), coalesce(queue.rate_tokens + CAST(greatest(EXTRACT(epoch
            FROM now() - queue.rate_at), 0) AS DOUBLE PRECISION) * CAST(queue.rate_limit / CAST(EXTRACT(epoch
            FROM queue.rate_period) AS NUMERIC) AS DOUBLE PRECISION), CAST(coalesce(queue.rate_burst, queue.rate_limit) AS DOUBLE PRECISION))) END - (%(counts)s::INTEGER[])[array_position(%(names)s::TEXT[], queue.name)]), rate_at=greatest(queue.rate_at, now())
WHERE queue.name = ANY (%(names)s::TEXT[])
AND queue.rate_limit IS NOT NULL
