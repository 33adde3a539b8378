SELECT quarantine.subject, quarantine.statement, quarantine.sqlstate, quarantine.error, quarantine.worker_id, quarantine.failures, quarantine.first_failed_at, quarantine.retry_at
FROM quarantine
WHERE %(subjects)s::TEXT[] IS NULL OR quarantine.subject = ANY (%(subjects)s::TEXT[])
ORDER BY quarantine.first_failed_at, quarantine.subject, quarantine.statement
LIMIT %(limit)s::INTEGER
