UPDATE dead_letter
SET resolution=%(resolution)s::VARCHAR, resolved_at=now(), resolved_by=%(resolved_by)s::VARCHAR, changed_xid=pg_current_xact_id()
WHERE dead_letter.resolution IS NULL
AND dead_letter.id = ANY (%(param_1)s::UUID[])
RETURNING dead_letter.id
