WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(ids)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED)
UPDATE job
SET output=CAST((%(outputs)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT free.id
      FROM free)))
AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
AND job.leased_by = %(worker_id)s::VARCHAR
AND CAST(job.status AS TEXT) = 'running'
AND job.tableoid = CAST(%(table_oid)s::BIGINT AS OID)
RETURNING job.id, job.has_waiters, current_setting('application_name') AS session_name, CAST(job.status AS TEXT) = 'completed' AS is_completed
