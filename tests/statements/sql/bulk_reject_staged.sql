INSERT INTO job_bulk_reject (write_id, sequence, task_id, row, field, reason, record)
SELECT job_bulk_staging.write_id, job_bulk_staging.sequence, job_bulk_staging.task_id, job_bulk_staging.row, job_bulk_staging.rejected_field, job_bulk_staging.rejected_reason, job_bulk_staging.record
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_bulk_staging.rejected_reason IS NOT NULL
