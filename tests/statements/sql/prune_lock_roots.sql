SELECT job.id, job.type_name, CAST(coalesce(job.chain_status, job.status) AS TEXT) AS outcome
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.root_id IS NULL
AND job.chain_completed_at IS NOT NULL
AND NOT job.has_waiters
AND job.chain_completed_at < now() - coalesce(CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN (%(types_completed)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN (%(types_cancelled)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN (%(types_dead)s::INTERVAL[])[array_position(%(types)s::TEXT[], job.type_name)] END, CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN (%(queues_completed)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN (%(queues_cancelled)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN (%(queues_dead)s::INTERVAL[])[array_position(%(queues)s::TEXT[], job.queue)] END, CASE WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'completed') THEN %(default_completed)s::INTERVAL WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'cancelled') THEN %(default_cancelled)s::INTERVAL WHEN (CAST(coalesce(job.chain_status, job.status) AS TEXT) = 'dead') THEN %(default_dead)s::INTERVAL END)
ORDER BY job.id
FOR UPDATE SKIP LOCKED
