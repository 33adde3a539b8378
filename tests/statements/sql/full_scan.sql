WITH RECURSIVE lane(queue, fairness_key, priority, scheduled_at) AS (SELECT first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND (job.queue, job.fairness_key, job.priority) > (%(after_queue)s::VARCHAR, %(after_fairness_key)s::VARCHAR, %(after_priority)s::SMALLINT)
    ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
    LIMIT 1) AS first
  UNION ALL
  SELECT following.queue AS queue, following.fairness_key AS fairness_key, following.priority AS priority, following.scheduled_at AS scheduled_at
  FROM lane
  JOIN LATERAL (SELECT either.queue AS queue, either.fairness_key AS fairness_key, either.priority AS priority, either.scheduled_at AS scheduled_at
    FROM (SELECT anon_1.queue AS queue, anon_1.fairness_key AS fairness_key, anon_1.priority AS priority, anon_1.scheduled_at AS scheduled_at
      FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
        FROM job
        WHERE job.status = 'pending'
        AND job.priority >= '-9'
        AND (job.queue, job.fairness_key, job.priority) > (lane.queue, lane.fairness_key, lane.priority)
        AND lane.queue = ANY (%(served_queues)s::TEXT[])
        ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
        LIMIT 1) AS anon_1
      UNION ALL
      SELECT anon_2.queue AS queue, anon_2.fairness_key AS fairness_key, anon_2.priority AS priority, anon_2.scheduled_at AS scheduled_at
      FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
        FROM job
        WHERE job.status = 'pending'
        AND job.priority >= '-9'
        AND job.queue > lane.queue
        AND lane.queue != ALL (%(served_queues)s::TEXT[])
        ORDER BY job.queue, job.fairness_key, job.priority, job.scheduled_at, job.id
        LIMIT 1) AS anon_2) AS either) AS following ON true)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, found.queue, found.fairness_key, found.priority, found.scheduled_at, found.wait
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority, lane.scheduled_at AS scheduled_at, CAST(EXTRACT(epoch
      FROM lane.scheduled_at - now()) AS DOUBLE PRECISION) AS wait
  FROM lane
  LIMIT %(most)s::INTEGER) AS found ON true
