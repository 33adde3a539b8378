UPDATE dead_letter
SET resolution=%(resolution)s::VARCHAR, resolved_at=now(), resolved_by=coalesce(nullif(%(by)s::VARCHAR, ''), nullif(current_setting('sa_jobqueue.actor', true), ''), CAST(SESSION_USER AS TEXT)), changed_xid=pg_current_xact_id()
WHERE dead_letter.job_id = ANY (%(job_ids)s::UUID[])
AND dead_letter.resolution IS NULL
