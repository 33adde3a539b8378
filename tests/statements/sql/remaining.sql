WITH startable AS (SELECT probe.id AS id
  FROM unnest(%(queues)s::TEXT[], %(fairness_keys)s::TEXT[], %(priorities)s::SMALLINT[], %(cursor_at)s::TIMESTAMP WITH TIME ZONE[], %(cursor_id)s::UUID[]) AS lane(queue, fairness_key, priority, cursor_at, cursor_id)
  JOIN LATERAL (SELECT job.id AS id
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at <= now()
    AND job.type_name = ANY (%(types)s::TEXT[])
    AND job.attempt < 2147483647
    AND (job.expires_at IS NULL OR job.expires_at > now())
    AND (job.ordering_key IS NULL OR (SELECT other.id
        FROM job AS other
        WHERE other.ordering_key = job.ordering_key
        AND other.ordering_key IS NOT NULL
        AND other.leased_by IS NOT NULL
        LIMIT 1) IS NULL
      AND job.id = (SELECT first.id
        FROM job AS first
        WHERE first.ordering_key = job.ordering_key
        AND first.ordering_key IS NOT NULL
        AND first.status IN ('blocked', 'pending')
        AND NOT (coalesce(first.skip_while_retrying, false)
          AND first.status = 'pending'
          AND first.attempt > 0
          AND first.scheduled_at > now())
        ORDER BY first.ordering_key, first.created_at, first.id
        LIMIT 1))
    AND (job.scheduled_at, job.id) > (lane.cursor_at, lane.cursor_id)
    ORDER BY job.scheduled_at, job.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED) AS probe ON true
  LIMIT 1)
SELECT (SELECT startable.id
  FROM startable) IS NOT NULL AS is_due, (SELECT root.id
  FROM job AS root
  WHERE root.has_waiters
  AND root.chain_completed_at IS NOT NULL
  ORDER BY root.id
  LIMIT 1) IS NOT NULL AS has_chains_to_unblock
