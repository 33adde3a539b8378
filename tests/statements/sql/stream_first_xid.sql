SELECT (SELECT CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) AS xid
  FROM job
  WHERE job.changed_xid >= CAST(%(param_1)s AS xid8)
  AND job.changed_xid < CAST(%(param_2)s AS xid8)
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= CAST(%(param_3)s::BIGINT AS BIGINT) >> 6
  AND CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 <= CAST(%(param_4)s::BIGINT AS BIGINT) >> 6
  ORDER BY job.changed_xid
  LIMIT %(param_5)s::INTEGER) AS xid
