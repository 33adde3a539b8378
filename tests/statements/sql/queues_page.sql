WITH served AS (SELECT each.name AS name, count(*) AS workers
  FROM (SELECT unnest(worker.queues) AS name
    FROM worker) AS each
  GROUP BY each.name)
SELECT coalesce(queue.name, served.name) AS name, queue.weight, queue.key_max_running, queue.max_running, queue.rate_limit, queue.rate_period, queue.rate_burst, queue.rate_algorithm, queue.retry_base, queue.retry_factor, queue.retry_cap, queue.retain_completed, queue.retain_cancelled, queue.retain_dead, queue.paused_at, queue.paused_by, queue.created_at, queue.updated_at, coalesce(served.workers, of_whole.workers, %(coalesce_1)s::INTEGER) AS workers
FROM queue FULL OUTER JOIN served ON queue.name = served.name
LEFT OUTER JOIN served AS of_whole ON of_whole.name = split_part(queue.name, '/', 1)
WHERE %(names)s::TEXT[] IS NULL OR coalesce(queue.name, served.name) = ANY (%(names)s::TEXT[])
ORDER BY coalesce(queue.name, served.name)
LIMIT %(limit)s::INTEGER
