WITH read AS (SELECT in_flight.id AS id, in_flight.queue AS queue, in_flight.fairness_key AS fairness_key, in_flight.priority AS priority, in_flight.type_name AS type_name, in_flight.input_version AS input_version, in_flight.scheduled_at AS scheduled_at, in_flight.changed_xid AS changed_xid
  FROM unnest(CAST(%(xip)s::TEXT[] AS xid8[])) AS "then"(xid)
  JOIN LATERAL (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.type_name AS type_name, job.input_version AS input_version, job.scheduled_at AS scheduled_at, job.changed_xid AS changed_xid
    FROM job
    WHERE job.status = 'pending'
    AND job.changed_xid > '0'
    AND job.changed_xid >= "then".xid
    AND job.changed_xid <= "then".xid
    ORDER BY job.changed_xid) AS in_flight ON true
  UNION ALL
  SELECT since.id AS id, since.queue AS queue, since.fairness_key AS fairness_key, since.priority AS priority, since.type_name AS type_name, since.input_version AS input_version, since.scheduled_at AS scheduled_at, since.changed_xid AS changed_xid
  FROM (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.type_name AS type_name, job.input_version AS input_version, job.scheduled_at AS scheduled_at, job.changed_xid AS changed_xid
    FROM job
    WHERE job.status = 'pending'
    AND job.changed_xid > '0'
    AND job.changed_xid >= CAST(%(xmax)s::VARCHAR AS xid8)
    ORDER BY job.changed_xid) AS since
  UNION ALL
  SELECT freed.id AS id, freed.queue AS queue, freed.fairness_key AS fairness_key, freed.priority AS priority, freed.type_name AS type_name, freed.input_version AS input_version, freed.scheduled_at AS scheduled_at, freed.changed_xid AS changed_xid
  FROM (SELECT first.id AS id, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.type_name AS type_name, first.input_version AS input_version, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
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
    JOIN LATERAL (SELECT first.id AS id, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.type_name AS type_name, first.input_version AS input_version, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
      FROM job AS first
      WHERE first.ordering_key = key.ordering_key
      AND first.ordering_key IS NOT NULL
      AND first.status IN ('blocked', 'pending')
      ORDER BY first.ordering_key, first.created_at, first.id
      LIMIT 1) AS first ON true
    WHERE first.status = 'pending') AS freed
  LIMIT %(most_read)s::INTEGER), seen AS (SELECT read.id AS id, read.queue AS queue, read.fairness_key AS fairness_key, read.priority AS priority, read.type_name AS type_name, read.scheduled_at AS scheduled_at, read.changed_xid AS changed_xid
  FROM read
  WHERE read.queue = ANY (%(queues)s::TEXT[])
  AND read.type_name = ANY (%(types)s::TEXT[])
  AND coalesce(read.input_version <= (%(versions)s::INTEGER[])[array_position(%(version_types)s::TEXT[], read.type_name)], true)
  AND (read.queue || ' ' || read.fairness_key) != ALL (%(paused_keys)s::TEXT[])
  AND NOT (EXISTS (SELECT 1
      FROM unnest(%(known_queues)s::TEXT[], %(known_fairness_keys)s::TEXT[], %(known_priorities)s::SMALLINT[], %(known_types)s::TEXT[], %(known_at)s::TIMESTAMP WITH TIME ZONE[], %(known_id)s::UUID[]) AS known(queue, fairness_key, priority, type_name, at, id)
      WHERE read.queue = known.queue
      AND read.fairness_key = known.fairness_key
      AND read.priority = known.priority
      AND (read.type_name = known.type_name OR known.type_name = ''
        AND read.type_name = ANY (%(shared_types)s::TEXT[]))
      AND (read.scheduled_at, read.id) > (known.at, known.id)))
  LIMIT %(most)s::INTEGER)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, (SELECT count(*) >= %(most)s::INTEGER AS anon_1
  FROM seen) OR (SELECT count(*) >= %(most_read)s::INTEGER AS anon_2
  FROM read) AS is_cut, found.id, found.queue, found.fairness_key, found.priority, found.type_name, found.scheduled_at, CAST(found.changed_xid AS TEXT) AS changed_xid, CAST(EXTRACT(epoch
    FROM found.scheduled_at - now()) AS DOUBLE PRECISION) AS wait
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT seen.id AS id, seen.queue AS queue, seen.fairness_key AS fairness_key, seen.priority AS priority, seen.type_name AS type_name, seen.scheduled_at AS scheduled_at, seen.changed_xid AS changed_xid
  FROM seen
  UNION ALL
  SELECT CAST(NULL AS UUID) AS anon_3, ended.queue AS queue, ended.fairness_key AS fairness_key, ended.priority AS priority, ended.type_name AS type_name, following.scheduled_at AS scheduled_at, CAST(NULL AS xid8) AS anon__1
  FROM unnest(%(ended_queues)s::TEXT[], %(ended_fairness_keys)s::TEXT[], %(ended_priorities)s::SMALLINT[], %(ended_types)s::TEXT[]) AS ended(queue, fairness_key, priority, type_name)
  JOIN LATERAL (SELECT job.scheduled_at AS scheduled_at
    FROM job
    WHERE job.status = 'pending'
    AND job.priority >= '-9'
    AND job.queue = ended.queue
    AND job.fairness_key = ended.fairness_key
    AND job.priority = ended.priority
    AND job.scheduled_at >= %(read_to)s::TIMESTAMP WITH TIME ZONE
    AND (job.type_name = ended.type_name OR ended.type_name = ''
      AND job.type_name = ANY (%(shared_types)s::TEXT[]))
    AND coalesce(job.input_version <= (%(versions)s::INTEGER[])[array_position(%(version_types)s::TEXT[], job.type_name)], true)
    ORDER BY job.scheduled_at, job.id
    LIMIT 1) AS following ON true) AS found ON true
