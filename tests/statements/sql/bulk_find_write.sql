SELECT job_bulk_write.staged, job_bulk_write.enqueued, job_bulk_write.duplicates, job_bulk_write.rejected
FROM job_bulk_write
WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
AND job_bulk_write.sequence = %(sequence)s::BIGINT
