UPDATE dead_letter
SET resolution=%(resolution)s::VARCHAR, resolved_at=now(), resolved_by=coalesce(nullif(current_setting('sa_jobqueue.actor', true), ''), SESSION_USER), changed_xid=pg_current_xact_id()
WHERE dead_letter.job_id = ANY (%(job_ids)s::UUID[])
AND dead_letter.resolution IS NULL
