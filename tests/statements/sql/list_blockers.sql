SELECT job_chain.id, job_chain.queue, job_chain.type_name, job_chain.input, job_chain.input_version, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, job_chain.deduplication_key, job_chain.fairness_key, page.job_id, page.blocked_by_chain_id, page.index, page.is_resolved, page.on_failure, page.trace_context
FROM (SELECT job_blocker.job_id AS job_id, job_blocker.blocked_by_chain_id AS blocked_by_chain_id, job_blocker.index AS index, job_blocker.is_resolved AS is_resolved, job_blocker.on_failure AS on_failure, job_blocker.trace_context AS trace_context
  FROM job_blocker
  WHERE job_blocker.job_id = %(job_id_1)s::UUID
  AND job_blocker.index > %(index_1)s::INTEGER
  ORDER BY job_blocker.index
  LIMIT %(param_1)s::INTEGER) AS page
JOIN job_chain ON page.blocked_by_chain_id = job_chain.id
ORDER BY page.index
