INSERT INTO job_audit (id, done_by, operation, arguments, matched, changed, ids)
VALUES (%(id)s::UUID, %(done_by)s::VARCHAR, %(operation)s::VARCHAR, %(arguments)s::JSONB, %(matched)s::INTEGER, %(changed)s::INTEGER, %(ids)s::JSONB)
