SELECT told.kind, told.name, told.is_paused, told.weight, told.max_running, told.rate_limit, told.rate_period, told.rate_burst, told.key_max_running
FROM (SELECT 'queue' AS kind, queue.name AS name, queue.paused_at IS NOT NULL AS is_paused, queue.weight AS weight, queue.max_running AS max_running, queue.rate_limit AS rate_limit, queue.rate_period AS rate_period, queue.rate_burst AS rate_burst, queue.key_max_running AS key_max_running
  FROM queue
  WHERE split_part(queue.name, '/', 1) = ANY (%(queues)s::TEXT[])
  UNION ALL
  SELECT 'type' AS kind, job_type.type_name AS type_name, job_type.paused_at IS NOT NULL AS anon_1, 1, job_type.max_running AS max_running, job_type.rate_limit AS rate_limit, job_type.rate_period AS rate_period, job_type.rate_burst AS rate_burst, CAST(NULL AS INTEGER) AS anon_2
  FROM job_type
  WHERE job_type.type_name = ANY (%(types)s::TEXT[])
  UNION ALL
  SELECT 'worker' AS kind, worker.id AS id, false, 1, worker.concurrency_requested AS concurrency_requested, CAST(NULL AS INTEGER) AS anon_2, CAST(NULL AS INTERVAL) AS anon__1, CAST(NULL AS INTEGER) AS anon__2, CAST(NULL AS INTEGER) AS anon__3
  FROM worker
  WHERE worker.id = %(worker_id)s::VARCHAR) AS told
