SELECT (SELECT CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job_attempt
  WHERE job_attempt.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job_attempt.changed_xid < CAST(%(param_2)s AS xid8)
  ORDER BY job_attempt.changed_xid
  LIMIT %(param_3)s::INTEGER) AS first, (SELECT CAST(CAST(job_attempt.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job_attempt
  WHERE job_attempt.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job_attempt.changed_xid < CAST(%(param_2)s AS xid8)
  ORDER BY job_attempt.changed_xid
  LIMIT %(param_3)s::INTEGER OFFSET %(param_4)s::INTEGER) AS beyond
