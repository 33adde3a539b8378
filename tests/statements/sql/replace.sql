UPDATE job
SET priority=%(priority)s::SMALLINT, input=%(input)s::JSONB, input_version=%(input_version)s::INTEGER, scheduled_at=now(), changed_xid=pg_current_xact_id()
WHERE job.id = %(id_1)s::UUID
AND job.deduplication_key = %(deduplication_key_1)s::VARCHAR
AND job.status IN ('pending', 'blocked')
RETURNING job.id
