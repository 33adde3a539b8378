WITH RECURSIVE names(queue) AS ((SELECT job.queue AS queue
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue
    LIMIT 1)
  UNION ALL
  SELECT (SELECT job.queue
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue > names.queue
    ORDER BY job.queue
    LIMIT 1) AS anon_1
  FROM names
  WHERE names.queue IS NOT NULL)
SELECT names.queue
FROM names
WHERE names.queue IS NOT NULL
AND CASE WHEN (EXISTS (SELECT 1
    FROM worker
    WHERE worker.heartbeat_at > now() - %(ttl)s
    AND names.queue = ANY (worker.queues))) THEN false ELSE (SELECT job.queue
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = names.queue
  AND job.scheduled_at <= now()
  LIMIT 1) IS NOT NULL END
ORDER BY names.queue
