SELECT CAST(EXTRACT(epoch
    FROM min(probe.scheduled_at) - now()) AS DOUBLE PRECISION) AS anon_1
FROM unnest(%(queues)s::TEXT[], %(fairness_keys)s::TEXT[], %(priorities)s::SMALLINT[]) AS lane(queue, fairness_key, priority)
JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = lane.queue
  AND job.fairness_key = lane.fairness_key
  AND job.priority = lane.priority
  AND job.scheduled_at > coalesce(%(since)s::TIMESTAMP WITH TIME ZONE, now())
  AND job.type_name = ANY (%(types)s::TEXT[])
  ORDER BY job.scheduled_at, job.id
  LIMIT 1) AS probe ON true
