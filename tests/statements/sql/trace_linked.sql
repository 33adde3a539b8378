SELECT found.kind, found.traceparent
FROM (SELECT 'failed_attempt' AS kind, job.last_error ->> 'trace_context' AS traceparent, -1 AS place
  FROM job
  WHERE job.id = %(job_id)s::UUID
  UNION ALL
  SELECT 'blocker', root.trace_context AS trace_context, job_blocker.index AS index
  FROM job_blocker
  JOIN job AS root ON root.id = job_blocker.blocked_by_chain_id
  WHERE job_blocker.job_id = %(job_id)s::UUID) AS found
WHERE found.traceparent IS NOT NULL
ORDER BY found.place
LIMIT 100
