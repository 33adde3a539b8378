SELECT job.id, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM job
WHERE job.id = coalesce((SELECT job.id
    FROM job
    WHERE job.root_id = %(chain_id)s::UUID
    ORDER BY job.chain_index DESC
    LIMIT 1), %(chain_id)s::UUID)
FOR NO KEY UPDATE OF job
