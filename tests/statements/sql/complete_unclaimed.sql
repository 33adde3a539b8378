UPDATE job
SET output=CAST(%(job_output)s::VARCHAR AS JSONB), status='completed', completed_at=now(), completed_by=NULL, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
WHERE job.id = %(job_id)s::UUID
RETURNING job.has_waiters
