UPDATE job_bulk_write
SET staged=%(staged)s::BIGINT, enqueued=%(enqueued)s::BIGINT, duplicates=%(duplicates)s::BIGINT, rejected=%(rejected)s::BIGINT
WHERE job_bulk_write.write_id = %(of_write)s::VARCHAR
AND job_bulk_write.sequence = %(of_sequence)s::BIGINT
