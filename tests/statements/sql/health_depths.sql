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
SELECT lane.queue, coalesce(paused.fairness_key, '') AS fairness_key, CAST(sum(due.n) AS BIGINT) AS due, min(due.first_at) AS oldest_at, CAST(sum(later.n) AS BIGINT) AS later, min(later.first_at) AS next_at, bool_or(greatest(due.n, later.n) >= %(limit)s::INTEGER) AS is_capped
FROM lane
JOIN LATERAL (SELECT count(*) AS n, min(due_jobs.scheduled_at) AS first_at
  FROM (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at <= now()
    ORDER BY job.scheduled_at, job.id
    LIMIT %(limit)s::INTEGER) AS due_jobs) AS due ON true
JOIN LATERAL (SELECT count(*) AS n, min(later_jobs.scheduled_at) AS first_at
  FROM (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at > now()
    ORDER BY job.scheduled_at, job.id
    LIMIT %(limit)s::INTEGER) AS later_jobs) AS later ON true
LEFT OUTER JOIN (SELECT queue.name AS name, queue.fairness_key AS fairness_key
  FROM queue
  WHERE queue.paused_at IS NOT NULL
  AND queue.fairness_key != '') AS paused ON paused.name = lane.queue
AND paused.fairness_key = lane.fairness_key
GROUP BY lane.queue, coalesce(paused.fairness_key, '')
ORDER BY lane.queue, fairness_key
