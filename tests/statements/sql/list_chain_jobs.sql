SELECT page.chain_index, job.id, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index AS chain_index_1, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM (SELECT members.id AS id, members.chain_index AS chain_index
  FROM (SELECT job.id AS id, job.chain_index AS chain_index
    FROM job
    WHERE job.id = %(id_1)s::UUID
    AND job.root_id IS NULL
    AND job.chain_index > %(chain_index_2)s::INTEGER
    UNION ALL (SELECT job.id AS id, job.chain_index AS chain_index
      FROM job
      WHERE job.root_id = %(root_id_1)s::UUID
      AND job.chain_index > %(chain_index_2)s::INTEGER
      ORDER BY job.chain_index ASC
      LIMIT %(param_1)s::INTEGER)) AS members
  ORDER BY members.chain_index ASC
  LIMIT %(param_2)s::INTEGER) AS page
JOIN job ON job.id = page.id
ORDER BY page.chain_index ASC
