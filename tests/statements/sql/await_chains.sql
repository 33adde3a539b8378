UPDATE job
SET has_waiters=%(has_waiters)s
WHERE job.id = ANY (%(ids)s::UUID[])
AND NOT job.has_waiters
