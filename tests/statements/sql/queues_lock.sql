SELECT queue.name, queue.fairness_key, queue.paused_at, queue.paused_by, queue.weight, queue.concurrency_per_key, queue.global_concurrency, queue.rate_limit, queue.rate_period, queue.rate_burst, queue.rate_algorithm, queue.retry_base, queue.retry_factor, queue.retry_cap, queue.retain_completed, queue.retain_cancelled, queue.retain_dead, queue.created_at, queue.updated_at
FROM queue
WHERE queue.name = ANY (%(names)s::TEXT[])
AND queue.fairness_key = %(of_key)s::VARCHAR
ORDER BY queue.name
FOR NO KEY UPDATE
