INSERT INTO quarantine (subject, statement, sqlstate, error, worker_id, retry_at)
VALUES (%(subject)s::VARCHAR, %(statement)s::VARCHAR, %(sqlstate)s::VARCHAR, %(error)s::VARCHAR, %(worker_id)s::VARCHAR, (now() + %(pause)s))
ON CONFLICT (subject, statement) DO
UPDATE
SET sqlstate = excluded.sqlstate, error = excluded.error, worker_id = excluded.worker_id, failures = (quarantine.failures + %(failures_1)s::INTEGER), retry_at = excluded.retry_at
