SELECT job.id, job.status
FROM job
WHERE job.id = coalesce((SELECT other.id
    FROM job AS other
    WHERE other.ordering_key = %(ordering_key)s::VARCHAR
    AND other.ordering_key IS NOT NULL
    AND other.leased_by IS NOT NULL
    LIMIT 1), (SELECT first.id
    FROM job AS first
    WHERE first.ordering_key = %(ordering_key)s::VARCHAR
    AND first.ordering_key IS NOT NULL
    AND first.status IN ('blocked', 'pending')
    AND NOT (coalesce(first.skip_while_retrying, false)
      AND first.status = 'pending'
      AND first.attempt > 0
      AND first.scheduled_at > now())
    ORDER BY first.ordering_key, first.created_at, first.id
    LIMIT 1))
