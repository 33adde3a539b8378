UPDATE job_queue
SET status=%(status)s
WHERE job_queue.id = ANY (%(param_1)s::UUID[])
