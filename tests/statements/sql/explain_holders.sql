SELECT job.leased_by AS worker_id, count(*) AS n, (array_agg(job.id
    ORDER BY job.started_at))[%(param_1)s::INTEGER] AS job_id, min(job.started_at) AS started_at
FROM job
WHERE job.status = 'running'
AND (%(queue)s::VARCHAR IS NULL OR job.queue = %(queue)s::VARCHAR)
AND (%(fairness_key)s::VARCHAR IS NULL OR job.fairness_key = %(fairness_key)s::VARCHAR)
AND (%(type_name)s::VARCHAR IS NULL OR job.type_name = %(type_name)s::VARCHAR)
GROUP BY job.leased_by
ORDER BY min(job.started_at)
