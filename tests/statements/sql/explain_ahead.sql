SELECT count(*) AS count_1
FROM (SELECT 1
  FROM job
  WHERE job.status = 'pending'
  AND job.priority >= '-9'
  AND job.queue = %(queue)s::VARCHAR
  AND job.fairness_key = %(fairness_key)s::VARCHAR
  AND job.scheduled_at <= now()
  AND (job.priority > %(priority)s::INTEGER OR job.priority = %(priority)s::INTEGER
    AND (job.scheduled_at, job.id) < (%(scheduled_at)s::TIMESTAMP WITH TIME ZONE, %(id)s::UUID))
  LIMIT %(limit)s::INTEGER) AS before
