SELECT lane.queue, lane.fairness_key, lane.priority
FROM unnest(%(queues)s::TEXT[], %(fairness_keys)s::TEXT[], %(priorities)s::SMALLINT[], %(floor_at)s::TIMESTAMP WITH TIME ZONE[], %(floor_id)s::UUID[]) AS lane(queue, fairness_key, priority, floor_at, floor_id)
JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
  FROM job
  WHERE job.status = 'pending'
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
  AND job.priority >= '-9'
  AND job.queue = lane.queue
  AND job.fairness_key = lane.fairness_key
  AND job.priority = lane.priority
  AND (job.scheduled_at, job.id) > (lane.floor_at, lane.floor_id)
  ORDER BY job.scheduled_at, job.id
  LIMIT 1) AS probe ON true
ORDER BY probe.scheduled_at
LIMIT 1
