WITH lost AS (SELECT orphan.id AS id, orphan.leased_by AS leased_by, orphan.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND NOT (EXISTS (SELECT 1
        FROM worker
        WHERE worker.id = job.leased_by))
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS orphan
  LIMIT %(limit)s::INTEGER)
SELECT lost.id
FROM lost
