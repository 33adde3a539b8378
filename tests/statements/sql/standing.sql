SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
