UPDATE job
SET is_awaited=%(is_awaited)s
WHERE job.id = ANY (%(ids)s::UUID[])
AND NOT job.is_awaited
