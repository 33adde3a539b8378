SELECT job.root_id AS chain_id, count(*) AS n
FROM job
WHERE job.root_id = ANY (%(ids)s::UUID[])
GROUP BY job.root_id
