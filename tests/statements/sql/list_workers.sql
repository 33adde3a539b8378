SELECT worker.id, worker.name, worker.host, worker.pid, worker.version, worker.queues, worker.job_types, worker.concurrency, worker.state, worker.started_at, worker.heartbeat_at, worker.drain_requested_at, worker.selectors, worker.type_slots, CAST(clock_timestamp() - worker.heartbeat_at AS INTERVAL) AS silent_for, (SELECT count(*) AS count_1
  FROM job
  WHERE job.status = 'running'
  AND job.leased_by = worker.id) AS running
FROM worker
WHERE worker.id = ANY (%(param_1)s::TEXT[])
AND worker.name LIKE %(name_1)s::VARCHAR ESCAPE '\'
AND worker.queues && %(param_2)s::TEXT[]
AND (worker.name, worker.id) > (%(param_3)s::VARCHAR, %(param_4)s::VARCHAR)
ORDER BY worker.name, worker.id
LIMIT %(param_5)s::INTEGER
