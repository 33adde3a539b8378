UPDATE job
SET has_waiters=%(has_waiters)s
WHERE job.id = ANY (%(ids)s::UUID[])
RETURNING pg_notify(%(pg_notify_2)s::VARCHAR, CAST(job.id AS TEXT)) AS pg_notify_1
