WITH oldest AS (SELECT job_audit.id AS id, job_audit.done_at AS done_at
  FROM job_audit
  ORDER BY job_audit.id
  LIMIT %(limit)s::INTEGER)
DELETE
FROM job_audit
WHERE job_audit.id IN (SELECT oldest.id
  FROM oldest
  WHERE oldest.done_at < now() - %(age)s)
RETURNING job_audit.id
