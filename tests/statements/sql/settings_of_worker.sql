SELECT setting.kind, setting.name, setting.fairness_key, setting.is_paused, setting.weight, setting.global_concurrency, setting.rate_limit, setting.rate_period, setting.rate_burst, setting.rate_algorithm, setting.concurrency_per_key, setting.retry_base, setting.retry_factor, setting.retry_cap
FROM (SELECT 'queue' AS kind, queue.name AS name, queue.fairness_key AS fairness_key, queue.paused_at IS NOT NULL AS is_paused, queue.weight AS weight, queue.global_concurrency AS global_concurrency, queue.rate_limit AS rate_limit, CASE WHEN (queue.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (queue.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE queue.rate_period END AS rate_period, queue.rate_burst AS rate_burst, queue.rate_algorithm AS rate_algorithm, queue.concurrency_per_key AS concurrency_per_key, queue.retry_base AS retry_base, queue.retry_factor AS retry_factor, queue.retry_cap AS retry_cap
  FROM queue
  WHERE queue.name = ANY (%(queues)s::TEXT[])
  UNION ALL
  SELECT 'type' AS kind, job_type.type_name AS type_name, '', job_type.paused_at IS NOT NULL AS anon_1, 1, job_type.global_concurrency AS global_concurrency, job_type.rate_limit AS rate_limit, CASE WHEN (job_type.rate_period < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (job_type.rate_period > '36500 days'::interval) THEN '36500 days'::interval ELSE job_type.rate_period END AS rate_period, job_type.rate_burst AS rate_burst, job_type.rate_algorithm AS rate_algorithm, CAST(NULL AS INTEGER) AS anon_2, CAST(NULL AS INTERVAL) AS anon__1, CAST(NULL AS DOUBLE PRECISION) AS anon__2, CAST(NULL AS INTERVAL) AS anon__3
  FROM job_type
  WHERE job_type.type_name = ANY (%(types)s::TEXT[])
  UNION ALL
  SELECT 'worker' AS kind, worker.id AS id, '', false, 1, worker.concurrency_requested AS concurrency_requested, CAST(NULL AS INTEGER) AS anon_2, CAST(NULL AS INTERVAL) AS anon__4, CAST(NULL AS INTEGER) AS anon__5, CAST(NULL AS TEXT) AS anon__6, CAST(NULL AS INTEGER) AS anon__7, CAST(NULL AS INTERVAL) AS anon__8, CAST(NULL AS DOUBLE PRECISION) AS anon__9, CAST(NULL AS INTERVAL) AS anon__10
  FROM worker
  WHERE worker.id = %(worker_id)s::VARCHAR) AS setting
