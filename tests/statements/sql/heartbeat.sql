INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, heartbeat_pause, state, selectors, type_slots, type_versions, progress, report, stuck_threads, failure)
VALUES (%(id)s::VARCHAR, %(name)s::VARCHAR, %(host)s::VARCHAR, %(pid)s::INTEGER, %(version)s::VARCHAR, %(queues)s::TEXT[], %(job_types)s::TEXT[], %(concurrency)s::INTEGER, %(heartbeat_pause)s::INTERVAL, %(state)s::VARCHAR, %(selectors)s::JSONB, %(type_slots)s::JSONB, %(type_versions)s::JSONB, %(progress)s::JSONB, %(report)s::JSONB, %(stuck_threads)s::INTEGER, %(failure)s::VARCHAR)
ON CONFLICT (id) DO
UPDATE
SET concurrency = excluded.concurrency, heartbeat_at = clock_timestamp(), heartbeat_pause = excluded.heartbeat_pause, state = excluded.state, progress = excluded.progress, report = excluded.report, stuck_threads = excluded.stuck_threads, failure = excluded.failure
RETURNING worker.drain_requested_at
