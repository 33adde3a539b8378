SELECT found.id, found.place, found.fits, job_audit.id AS id_1, job_audit.done_at, job_audit.done_by, job_audit.operation, job_audit.arguments, job_audit.matched, job_audit.changed, job_audit.ids
FROM (SELECT walked.id AS id, walked.place AS place, walked.fits AS fits
  FROM (SELECT job_audit.id AS id, row_number() OVER (ORDER BY job_audit.id DESC) AS place, job_audit.operation IN (__[POSTCOMPILE_operation_1])
    AND job_audit.done_by IN (__[POSTCOMPILE_done_by_1]) AS fits
    FROM job_audit
    ORDER BY job_audit.id DESC
    LIMIT %(param_1)s::INTEGER) AS walked
  WHERE walked.fits OR walked.place = %(place_1)s::INTEGER
  ORDER BY walked.id DESC
  LIMIT %(param_2)s::INTEGER) AS found
JOIN job_audit ON job_audit.id = found.id
ORDER BY found.id DESC
