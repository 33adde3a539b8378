UPDATE job_bulk_staging
SET rejected_field='id', rejected_reason='is that of another job, in the queue or in this write', record=CAST(jsonb_strip_nulls(jsonb_build_object('id', job_bulk_staging.id, 'queue', job_bulk_staging.queue, 'fairness_key', job_bulk_staging.fairness_key, 'type_name', job_bulk_staging.type_name, 'priority', job_bulk_staging.priority, 'input_version', job_bulk_staging.input_version, 'scheduled_at', job_bulk_staging.scheduled_at, 'delay', job_bulk_staging.delay, 'max_attempts', job_bulk_staging.max_attempts, 'timeout', job_bulk_staging.timeout, 'deduplication_key', job_bulk_staging.deduplication_key, 'blockers', job_bulk_staging.blockers, 'on_failure', job_bulk_staging.on_failure, 'trace_context', job_bulk_staging.trace_context, 'rate_cost', job_bulk_staging.rate_cost, 'expires_at', job_bulk_staging.expires_at, 'ordering_key', job_bulk_staging.ordering_key, 'skip_while_retrying', job_bulk_staging.skip_while_retrying)) || jsonb_build_object('input', job_bulk_staging.input) AS TEXT)
FROM (SELECT each.task_id AS task_id, each.row AS row, row_number() OVER (PARTITION BY each.id
    ORDER BY each.task_id, each.row) AS place, job.id AS job_id
  FROM job_bulk_staging AS each
  LEFT OUTER JOIN job ON job.id = each.id
  WHERE each.write_id = %(of_write_id)s::VARCHAR
  AND each.sequence = %(of_sequence)s::BIGINT
  AND each.task_id = ANY (%(of_task_ids)s::BIGINT[])
  AND each.rejected_reason IS NULL) AS found
WHERE job_bulk_staging.write_id = %(of_write_id)s::VARCHAR
AND job_bulk_staging.sequence = %(of_sequence)s::BIGINT
AND job_bulk_staging.task_id = ANY (%(of_task_ids)s::BIGINT[])
AND job_bulk_staging.task_id = found.task_id
AND job_bulk_staging.row = found.row
AND (found.place > 1 OR found.job_id IS NOT NULL)
