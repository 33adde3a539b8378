UPDATE job
SET leased_until=(least(now() + %(extension)s, job.deadline) + %(grace)s)
WHERE job.id = %(job_id)s::UUID
AND job.attempt = %(job_attempt)s::INTEGER
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
RETURNING job.id
