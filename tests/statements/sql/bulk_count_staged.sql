SELECT job_bulk_staging.queue, count(*) AS count_1, count(job_bulk_staging.rejected_reason) AS count_2, count(job_bulk_staging.deduplication_key) AS count_3, count(job_bulk_staging.blockers) AS count_4, max(job_bulk_staging.fairness_key) AS fairness_key
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
GROUP BY job_bulk_staging.queue
