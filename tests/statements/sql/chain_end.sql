UPDATE job
SET chain_completed_at=now(), chain_status='completed'
WHERE job.id = %(root)s::UUID
RETURNING job.has_waiters
