SELECT job.queue, count(*) AS n
FROM job
WHERE job.status = 'running'
AND job.queue = ANY (%(queues)s::TEXT[])
GROUP BY job.queue
