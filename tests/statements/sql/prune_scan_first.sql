WITH page AS (SELECT job.id AS id, job.root_id AS root_id, job.type_name AS type_name, job.queue AS queue, job.status AS status, job.chain_status AS chain_status, job.chain_completed_at AS chain_completed_at, job.has_waiters AS has_waiters, job.created_at AS created_at
  FROM job
  ORDER BY job.id
  LIMIT %(scan)s::INTEGER)
SELECT count(*) AS scanned, (SELECT page.id
  FROM page
  ORDER BY page.id DESC
  LIMIT 1) AS last_id, bool_and(page.created_at >= now() - %(shortest)s::INTERVAL) AS is_young, array_agg(page.id
  ORDER BY page.id ASC) FILTER (WHERE page.root_id IS NULL
  AND page.chain_completed_at IS NOT NULL
  AND NOT page.has_waiters
  AND page.chain_completed_at < now() - coalesce(CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN (%(types_completed)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN (%(types_cancelled)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN (%(types_dead)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)] END, CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN (%(queues_completed)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN (%(queues_cancelled)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN (%(queues_dead)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)] END, CASE WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'completed') THEN %(default_completed)s::INTERVAL WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'cancelled') THEN %(default_cancelled)s::INTERVAL WHEN (CAST(coalesce(page.chain_status, page.status) AS TEXT) = 'dead') THEN %(default_dead)s::INTERVAL END)) AS ids
FROM page
