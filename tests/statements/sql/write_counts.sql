SELECT (SELECT job_bulk_write.enqueued
  FROM job_bulk_write
  WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
  AND job_bulk_write.sequence = %(sequence)s::BIGINT) IS NOT NULL AS is_there, count(*) FILTER (WHERE job.chain_completed_at IS NULL) AS open, count(*) FILTER (WHERE job.chain_completed_at IS NOT NULL
  AND coalesce(job.chain_status, job.status) = 'completed') AS completed, count(*) FILTER (WHERE job.chain_completed_at IS NOT NULL
  AND coalesce(job.chain_status, job.status) = 'dead') AS dead, count(*) FILTER (WHERE job.chain_completed_at IS NOT NULL
  AND coalesce(job.chain_status, job.status) = 'cancelled') AS cancelled, coalesce((SELECT job_bulk_write.enqueued
    FROM job_bulk_write
    WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
    AND job_bulk_write.sequence = %(sequence)s::BIGINT), 0) - count(*) AS deleted
FROM job
WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (SELECT CAST(CAST(job_bulk_write.changed_xid AS TEXT) AS BIGINT) AS changed_xid
  FROM job_bulk_write
  WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
  AND job_bulk_write.sequence = %(sequence)s::BIGINT) >> 6
AND job.created_at = (SELECT job_bulk_write.written_at
  FROM job_bulk_write
  WHERE job_bulk_write.write_id = %(write_id)s::VARCHAR
  AND job_bulk_write.sequence = %(sequence)s::BIGINT)
AND job.chain_index = 0
