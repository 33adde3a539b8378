SELECT job_stage.queue, count(*) AS count_1, count(job_stage.rejected_reason) AS count_2, count(job_stage.deduplication_key) AS count_3, count(job_stage.blockers) AS count_4
FROM job_stage
WHERE job_stage.write_id = %(write_id)s::VARCHAR
AND job_stage.sequence = %(sequence)s::BIGINT
AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
GROUP BY job_stage.queue
