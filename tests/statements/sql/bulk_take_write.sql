INSERT INTO job_bulk_write (write_id, sequence, staged, enqueued, duplicates, rejected, written_by)
VALUES (%(write_id)s::VARCHAR, %(sequence)s::BIGINT, 0, 0, 0, 0, %(written_by)s::VARCHAR)
ON CONFLICT (write_id, sequence) DO NOTHING
RETURNING job_bulk_write.sequence
