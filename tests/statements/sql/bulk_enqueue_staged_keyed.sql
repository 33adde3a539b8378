INSERT INTO job (id, queue, type_name, priority, chain_id, chain_type_name, input, input_version, scheduled_at, max_attempts, timeout, deduplication_key, trace_context, chain_trace_context, rate_weight, expires_at, ordering_key, steps_aside, status, open_blockers, is_awaited)
SELECT job_stage.id, coalesce(job_stage.queue, %(queue)s::VARCHAR) AS coalesce_1, coalesce(job_stage.type_name, %(type_name)s::VARCHAR) AS coalesce_2, coalesce(job_stage.priority, %(priority)s::SMALLINT) AS coalesce_3, job_stage.id AS id__1, coalesce(job_stage.type_name, %(type_name)s::VARCHAR) AS coalesce__1, coalesce(job_stage.input, CAST('null' AS JSONB)) AS coalesce_4, coalesce(job_stage.input_version, %(input_version)s::INTEGER) AS coalesce_5, greatest(job_stage.scheduled_at, now() + coalesce(job_stage.delay, interval '0')) AS greatest_1, coalesce(job_stage.max_attempts, %(max_attempts)s::INTEGER) AS coalesce_6, job_stage.timeout, job_stage.deduplication_key, coalesce(job_stage.trace_context, %(trace_context)s::VARCHAR) AS coalesce_7, coalesce(job_stage.trace_context, %(trace_context)s::VARCHAR) AS coalesce__2, coalesce(job_stage.rate_weight, %(rate_weight)s::INTEGER) AS coalesce_8, job_stage.expires_at, job_stage.ordering_key, job_stage.steps_aside, 'pending', 0, false
FROM job_stage
WHERE job_stage.write_id = %(write_id)s::VARCHAR
AND job_stage.sequence = %(sequence)s::BIGINT
AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
AND job_stage.rejected_reason IS NULL
ORDER BY coalesce(job_stage.type_name, %(type_name)s::VARCHAR) COLLATE "C", job_stage.deduplication_key COLLATE "C", job_stage.task_id, job_stage.row
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO NOTHING
