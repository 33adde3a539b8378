SELECT job.id, job.chain_id, job.type_name, job.status, job.has_waiters, job.chain_completed_at IS NOT NULL AS ended, coalesce(job.chain_status, job.status) AS outcome
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.tableoid = CAST(%(table_oid)s::BIGINT AS OID)
AND CAST(to_regclass(%(to_regclass_1)s::VARCHAR) AS OID) = (SELECT companion.oid
  FROM pg_catalog.pg_class AS companion
  JOIN pg_catalog.pg_class AS claimed ON companion.relnamespace = claimed.relnamespace
  WHERE companion.relname = %(relname_1)s::VARCHAR
  AND claimed.oid = CAST(%(table_oid)s::BIGINT AS OID))
ORDER BY job.root_id IS NOT NULL, job.id
FOR NO KEY UPDATE
