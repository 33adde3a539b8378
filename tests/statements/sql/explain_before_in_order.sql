SELECT job.id, job.status
FROM job
WHERE job.ordering_key = %(ordering_key)s::VARCHAR
AND job.ordering_key IS NOT NULL
AND job.status IN ('blocked', 'pending', 'running')
AND NOT (coalesce(job.steps_aside, false)
  AND job.status = 'pending'
  AND job.attempt > 0
  AND job.scheduled_at > now())
ORDER BY job.leased_by IS NULL, job.created_at, job.id
LIMIT 1
