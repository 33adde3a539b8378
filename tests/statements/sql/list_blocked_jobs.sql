SELECT page.id, page.place, page.fits, job.id AS id_1, job.queue, job.fairness_key, job.type_name, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.root_id, job.input, job.input_version, job.output, job.status, job.open_blockers, job.has_waiters, job.created_at, job.scheduled_at, job.started_at, job.completed_at, job.completed_by, job.attempt, job.max_attempts, job.timeout, job.last_error, job.leased_by, job.leased_until, job.deduplication_key, job.chain_completed_at, job.trace_context, job.chain_trace_context, job.changed_xid, job.chain_status, job.expires_at, job.ordering_key, job.skip_while_retrying, job.rate_cost
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job_blocker.job_id AS id, row_number() OVER (ORDER BY job_blocker.job_id DESC) AS place, NOT job_blocker.is_resolved AS fits
    FROM job_blocker
    WHERE job_blocker.job_id < %(job_id_1)s::UUID
    AND job_blocker.blocked_by_chain_id = %(blocked_by_chain_id_1)s::UUID
    ORDER BY job_blocker.job_id DESC
    LIMIT %(param_1)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_2)s::INTEGER) AS page
LEFT OUTER JOIN job ON job.id = page.id
AND page.fits
ORDER BY page.id DESC
