SELECT count(*) FILTER (WHERE split_part(job.queue, '/', 1) = %(queue)s::VARCHAR) AS anon_1, count(*) FILTER (WHERE job.type_name = %(type_name)s::VARCHAR) AS anon_2
FROM job
WHERE job.status = 'running'
