INSERT INTO job (id, queue, fairness_key, type_name, priority, chain_id, chain_type_name, input, input_version, scheduled_at, max_attempts, timeout, deduplication_key, trace_context, chain_trace_context, rate_cost, expires_at, ordering_key, skip_while_retrying, status, open_blockers, has_waiters)
SELECT job_bulk_staging.id, coalesce(job_bulk_staging.queue, %(queue)s::VARCHAR) AS coalesce_1, coalesce(job_bulk_staging.fairness_key, '') AS coalesce_2, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce_3, coalesce(job_bulk_staging.priority, %(priority)s::SMALLINT) AS coalesce_4, job_bulk_staging.id AS id__1, coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) AS coalesce__1, coalesce(job_bulk_staging.input, CAST('null' AS JSONB)) AS coalesce_5, coalesce(job_bulk_staging.input_version, %(input_version)s::INTEGER) AS coalesce_6, greatest(job_bulk_staging.scheduled_at, now() + coalesce(job_bulk_staging.delay, interval '0')) AS greatest_1, coalesce(job_bulk_staging.max_attempts, %(max_attempts)s::INTEGER) AS coalesce_7, job_bulk_staging.timeout, job_bulk_staging.deduplication_key, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce_8, coalesce(job_bulk_staging.trace_context, %(trace_context)s::VARCHAR) AS coalesce__2, coalesce(job_bulk_staging.rate_cost, %(rate_cost)s::INTEGER) AS coalesce_9, job_bulk_staging.expires_at, job_bulk_staging.ordering_key, job_bulk_staging.skip_while_retrying, 'pending', 0, false
FROM job_bulk_staging
WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_bulk_staging.rejected_reason IS NULL
ORDER BY coalesce(job_bulk_staging.type_name, %(type_name)s::VARCHAR) COLLATE "C", job_bulk_staging.deduplication_key COLLATE "C", job_bulk_staging.task_id, job_bulk_staging.row
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO NOTHING
