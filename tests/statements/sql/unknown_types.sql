SELECT DISTINCT oldest.type_name
FROM unnest(%(queues)s::TEXT[]) AS queue(name)
JOIN LATERAL (SELECT job.type_name AS type_name
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = queue.name
  AND job.scheduled_at <= now()
  LIMIT 1000) AS oldest ON true
WHERE NOT (oldest.type_name = ANY (%(types)s::TEXT[]))
AND NOT (EXISTS (SELECT 1
    FROM worker
    WHERE worker.heartbeat_at > now() - %(ttl)s
    AND oldest.type_name = ANY (worker.job_types)))
