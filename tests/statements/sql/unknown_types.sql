WITH RECURSIVE lane(queue, fairness_key, priority, scheduled_at, type_name) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at, first.type_name AS type_name
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at, job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority, following.scheduled_at AS scheduled_at, following.type_name AS type_name
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at, job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, CASE WHEN (lane.fairness_key != '') THEN lane.priority ELSE 9 END)
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS following ON true)
SELECT DISTINCT found.type_name
FROM (SELECT oldest.type_name AS type_name
  FROM unnest(%(queues)s::TEXT[]) AS queue(name)
  JOIN LATERAL (SELECT job.type_name AS type_name
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = queue.name
    AND job.fairness_key = ''
    AND job.scheduled_at <= now()
    LIMIT 1000) AS oldest ON true
  UNION ALL
  SELECT head.type_name AS type_name
  FROM (SELECT lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority, lane.scheduled_at AS scheduled_at, lane.type_name AS type_name
    FROM lane
    LIMIT 1000) AS head
  WHERE head.fairness_key != ''
  AND head.queue = ANY (%(queues)s::TEXT[])
  AND head.scheduled_at <= now()) AS found
WHERE NOT (found.type_name = ANY (%(types)s::TEXT[]))
AND NOT (EXISTS (SELECT 1
    FROM worker
    WHERE worker.heartbeat_at > now() - %(ttl)s
    AND found.type_name = ANY (worker.job_types)))
