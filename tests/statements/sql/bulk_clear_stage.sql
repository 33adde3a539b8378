DELETE
FROM job_stage
WHERE job_stage.write_id = %(write_id)s::VARCHAR
AND job_stage.sequence <= %(sequence)s::BIGINT
