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
SELECT names.queue, levels.priority, due.n AS due, due.first_at AS oldest_at, later.n AS later, later.first_at AS next_at
FROM names
JOIN generate_series('-9'::int, '9'::int) AS levels(priority) ON true
JOIN LATERAL (SELECT count(*) AS n, min(due_jobs.scheduled_at) AS first_at
  FROM (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = names.queue
    AND job.priority = levels.priority
    AND job.scheduled_at <= now()
    ORDER BY job.scheduled_at, job.id
    LIMIT %(limit)s::INTEGER) AS due_jobs) AS due ON true
JOIN LATERAL (SELECT count(*) AS n, min(later_jobs.scheduled_at) AS first_at
  FROM (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = names.queue
    AND job.priority = levels.priority
    AND job.scheduled_at > now()
    ORDER BY job.scheduled_at, job.id
    LIMIT %(limit)s::INTEGER) AS later_jobs) AS later ON true
WHERE names.queue IS NOT NULL
AND due.n + later.n > 0
