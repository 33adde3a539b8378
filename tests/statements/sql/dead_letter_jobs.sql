SELECT DISTINCT dead_letter.job_id
FROM dead_letter
WHERE dead_letter.resolution IS NULL
AND (EXISTS (SELECT *
    FROM job
    WHERE job.id = dead_letter.job_id
    AND job.status = %(status_1)s))
AND dead_letter.job_id > %(job_id_1)s::UUID
ORDER BY dead_letter.job_id
LIMIT %(param_1)s::INTEGER
