DELETE
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence <= %(sequence)s::BIGINT
