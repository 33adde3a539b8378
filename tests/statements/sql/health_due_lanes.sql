WITH RECURSIVE lane(queue, fairness_key, priority) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    ORDER BY job.queue, job.fairness_key, job.priority
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority
  FROM lane
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, lane.priority)
    ORDER BY job.queue, job.fairness_key, job.priority
    LIMIT 1) AS following ON true)
SELECT lanes.queue, lanes.fairness_key, CAST(now() - min(oldest.scheduled_at) AS INTERVAL) AS waiting_for
FROM (SELECT lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority
  FROM lane
  LIMIT %(limit)s::INTEGER) AS lanes
JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = lanes.queue
  AND job.fairness_key = lanes.fairness_key
  AND job.priority = lanes.priority
  AND job.scheduled_at <= now()
  ORDER BY job.scheduled_at, job.id
  LIMIT 1) AS oldest ON true
GROUP BY lanes.queue, lanes.fairness_key
