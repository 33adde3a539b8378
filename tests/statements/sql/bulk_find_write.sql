SELECT job_write.staged, job_write.enqueued, job_write.duplicates, job_write.rejected
FROM job_write
WHERE job_write.write_id = %(write_id)s::VARCHAR
AND job_write.sequence = %(sequence)s::BIGINT
