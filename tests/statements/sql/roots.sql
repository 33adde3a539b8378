SELECT job.id
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.root_id IS NULL
ORDER BY job.id
