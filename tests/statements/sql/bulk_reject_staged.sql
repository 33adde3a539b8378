INSERT INTO job_reject (write_id, sequence, task_id, row, field, reason, record)
SELECT job_stage.write_id, job_stage.sequence, job_stage.task_id, job_stage.row, job_stage.rejected_field, job_stage.rejected_reason, job_stage.record
FROM job_stage
WHERE job_stage.write_id = %(write_id)s::VARCHAR
AND job_stage.sequence = %(sequence)s::BIGINT
AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_stage.rejected_reason IS NOT NULL
