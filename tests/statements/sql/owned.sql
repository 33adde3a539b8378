SELECT job.id, job.attempt
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND (CAST(job.status AS TEXT) = 'running'
  AND job.leased_by = %(worker_id)s::VARCHAR OR job.status = 'completed'
  AND job.completed_by = %(worker_id)s::VARCHAR)
