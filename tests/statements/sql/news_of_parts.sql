WITH seen AS (SELECT in_flight.queue AS queue, in_flight.fairness_key AS fairness_key, in_flight.priority AS priority, in_flight.scheduled_at AS scheduled_at
  FROM unnest(CAST(%(xip)s::TEXT[] AS xid8[])) AS "then"(xid)
  JOIN LATERAL (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.changed_xid > '0'
    AND job.changed_xid >= "then".xid
    AND job.changed_xid <= "then".xid
    ORDER BY job.changed_xid) AS in_flight ON true
  UNION ALL
  SELECT since.queue AS queue, since.fairness_key AS fairness_key, since.priority AS priority, since.scheduled_at AS scheduled_at
  FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.changed_xid > '0'
    AND job.changed_xid >= CAST(%(xmax)s::VARCHAR AS xid8)
    ORDER BY job.changed_xid) AS since
  UNION ALL
  SELECT freed.queue AS queue, freed.fairness_key AS fairness_key, freed.priority AS priority, freed.scheduled_at AS scheduled_at
  FROM (SELECT first.id AS id, first.type_name AS type_name, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
    FROM (SELECT DISTINCT keys.ordering_key AS ordering_key
      FROM (SELECT of_then.ordering_key AS ordering_key
        FROM unnest(CAST(%(xip)s::TEXT[] AS xid8[])) AS "then"(xid)
        JOIN LATERAL (SELECT left_key.ordering_key AS ordering_key
          FROM job AS left_key
          WHERE left_key.ordering_key IS NOT NULL
          AND left_key.leased_by IS NULL
          AND (left_key.completed_at IS NOT NULL OR left_key.started_at IS NOT NULL)
          AND left_key.changed_xid >= "then".xid
          AND left_key.changed_xid <= "then".xid) AS of_then ON true
        UNION ALL
        SELECT left_key.ordering_key AS ordering_key
        FROM job AS left_key
        WHERE left_key.ordering_key IS NOT NULL
        AND left_key.leased_by IS NULL
        AND (left_key.completed_at IS NOT NULL OR left_key.started_at IS NOT NULL)
        AND left_key.changed_xid >= CAST(%(xmax)s::VARCHAR AS xid8)
        AND left_key.changed_xid < pg_snapshot_xmax(pg_current_snapshot())) AS keys) AS key
    JOIN LATERAL (SELECT first.id AS id, first.type_name AS type_name, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
      FROM job AS first
      WHERE first.ordering_key = key.ordering_key
      AND first.ordering_key IS NOT NULL
      AND first.status IN ('blocked', 'pending')
      AND NOT (coalesce(first.skip_while_retrying, false)
        AND first.status = 'pending'
        AND first.attempt > 0
        AND first.scheduled_at > now())
      ORDER BY first.ordering_key, first.created_at, first.id
      LIMIT 1) AS first ON true
    WHERE first.status = 'pending') AS freed
  LIMIT %(most)s::INTEGER)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, (SELECT count(*) >= %(most)s::INTEGER AS anon_1
  FROM seen) AS is_cut, found.is_news, found.queue, found.fairness_key, found.priority, found.scheduled_at, CAST(EXTRACT(epoch
    FROM found.scheduled_at - now()) AS DOUBLE PRECISION) AS wait
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT true AS is_news, seen.queue AS queue, seen.fairness_key AS fairness_key, seen.priority AS priority, min(seen.scheduled_at) AS scheduled_at
  FROM seen
  WHERE seen.fairness_key != ''
  AND seen.queue = ANY (%(queues)s::TEXT[])
  GROUP BY seen.queue, seen.fairness_key, seen.priority
  UNION ALL
  SELECT false, lane.queue AS queue, lane.fairness_key AS fairness_key, lane.priority AS priority, following.scheduled_at AS scheduled_at
  FROM unnest(%(lane_queues)s::TEXT[], %(lane_fairness_keys)s::TEXT[], %(lane_priorities)s::SMALLINT[]) AS lane(queue, fairness_key, priority)
  JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = lane.queue
    AND job.fairness_key = lane.fairness_key
    AND job.priority = lane.priority
    AND job.scheduled_at >= %(read_to)s::TIMESTAMP WITH TIME ZONE
    AND job.type_name = ANY (%(types)s::TEXT[])
    ORDER BY job.scheduled_at, job.id
    LIMIT 1) AS following ON true) AS found ON true
