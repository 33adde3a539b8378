DELETE
FROM worker
WHERE worker.id = %(worker_id)s::VARCHAR
AND NOT (EXISTS (SELECT 1
    FROM job
    WHERE job.status = 'running'
    AND job.leased_by = worker.id
    LIMIT ALL OFFSET 0))
