SELECT lane.queue, lane.priority
FROM unnest(%(queues)s::TEXT[], %(priorities)s::SMALLINT[], %(floor_at)s::TIMESTAMP WITH TIME ZONE[], %(floor_id)s::UUID[]) AS lane(queue, priority, floor_at, floor_id)
JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
  FROM job
  WHERE job.status = 'pending'
  AND job.scheduled_at <= now()
  AND job.type_name = ANY (%(types)s::TEXT[])
  AND job.attempt < 2147483647
  AND job.priority >= '-9'
  AND job.queue = lane.queue
  AND job.priority = lane.priority
  AND (job.scheduled_at, job.id) > (lane.floor_at, lane.floor_id)
  ORDER BY job.scheduled_at, job.id
  LIMIT 1) AS probe ON true
ORDER BY probe.scheduled_at
LIMIT 1
