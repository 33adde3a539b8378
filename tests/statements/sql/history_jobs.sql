SELECT CAST(job.id AS TEXT) AS id, CAST(job.queue AS TEXT) AS queue, CAST(job.type_name AS TEXT) AS type_name, job.priority AS priority, CAST(job.chain_id AS TEXT) AS chain_id, CAST(job.chain_type_name AS TEXT) AS chain_type_name, job.chain_index AS chain_index, CAST(job.input AS TEXT) AS input, job.input_version AS input_version, CAST(job.output AS TEXT) AS output, CAST(job.status AS TEXT) AS status, job.open_blockers AS open_blockers, job.created_at AS created_at, job.scheduled_at AS scheduled_at, job.started_at AS started_at, job.completed_at AS completed_at, CAST(job.completed_by AS TEXT) AS completed_by, job.attempt AS attempt, job.max_attempts AS max_attempts, CAST(EXTRACT(epoch
    FROM job.timeout) AS DOUBLE PRECISION) AS timeout_seconds, CAST(job.last_error AS TEXT) AS last_error, CAST(job.leased_by AS TEXT) AS leased_by, CAST(job.deduplication_key AS TEXT) AS deduplication_key, job.chain_completed_at AS chain_completed_at, CAST(job.chain_status AS TEXT) AS chain_status, CAST(job.trace_context AS TEXT) AS trace_context, CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid, job.expires_at AS expires_at, CAST(job.ordering_key AS TEXT) AS ordering_key, job.skip_while_retrying AS skip_while_retrying, job.rate_cost AS rate_cost, CAST(job.fairness_key AS TEXT) AS fairness_key
FROM job
WHERE CAST(job.queue AS TEXT) = ANY (%(param_1)s::TEXT[])
AND CAST(job.type_name AS TEXT) = ANY (%(param_2)s::TEXT[])
AND CAST(job.status AS TEXT) = ANY (%(param_3)s::TEXT[])
AND job.created_at >= CAST(%(param_4)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.created_at < CAST(%(param_5)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.completed_at >= CAST(%(param_6)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.completed_at < CAST(%(param_7)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)
AND job.changed_xid >= CAST(%(param_8)s AS xid8)
AND job.changed_xid < CAST(%(param_9)s AS xid8)
AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_10)s::BIGINT AS BIGINT) >> 6
AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_11)s::BIGINT AS BIGINT) >> 6
AND job.id >= CAST(%(param_12)s::UUID AS UUID)
AND job.id < CAST(%(param_13)s::UUID AS UUID)
