WITH RECURSIVE lane(queue, priority, scheduled_at, type_name) AS (SELECT first.queue AS queue, first.priority AS priority, first.scheduled_at AS scheduled_at, first.type_name AS type_name
  FROM (SELECT job.queue AS queue, job.priority AS priority, job.scheduled_at AS scheduled_at, job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.priority AS priority, following.scheduled_at AS scheduled_at, following.type_name AS type_name
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.priority AS priority, job.scheduled_at AS scheduled_at, job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.priority) > (lane.queue, CASE WHEN (strpos(lane.queue, '/') > 0) THEN lane.priority ELSE 9 END)
    ORDER BY job.queue, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS following ON true)
SELECT DISTINCT found.type_name
FROM (SELECT oldest.type_name AS type_name
  FROM unnest(%(queues)s::TEXT[]) AS queue(name)
  JOIN LATERAL (SELECT job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = queue.name
    AND job.scheduled_at <= now()
    LIMIT 1000) AS oldest ON true
  UNION ALL
  SELECT head.type_name AS type_name
  FROM (SELECT lane.queue AS queue, lane.priority AS priority, lane.scheduled_at AS scheduled_at, lane.type_name AS type_name
    FROM lane
    LIMIT 1000) AS head
  WHERE strpos(head.queue, '/') > 0
  AND split_part(head.queue, '/', 1) = ANY (%(queues)s::TEXT[])
  AND head.scheduled_at <= now()) AS found
WHERE NOT (found.type_name = ANY (%(types)s::TEXT[]))
AND NOT (EXISTS (SELECT 1
    FROM worker
    WHERE worker.heartbeat_at > now() - %(ttl)s
    AND found.type_name = ANY (worker.job_types)))
