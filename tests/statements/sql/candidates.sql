WITH picked AS (SELECT taken.id AS id
  FROM unnest(%(late_ids)s::UUID[], CAST(%(late_xids)s::TEXT[] AS xid8[])) AS late(id, xid)
  JOIN LATERAL (SELECT job.id AS id
    FROM job
    WHERE job.id = late.id
    AND job.changed_xid = late.xid
    AND CAST(job.status AS TEXT) = 'pending'
    AND job.scheduled_at <= now()
    AND job.type_name = ANY (%(types)s::TEXT[])
    AND coalesce(job.input_version <= (%(versions)s::INTEGER[])[array_position(%(version_types)s::TEXT[], job.type_name)], true)
    AND job.attempt < 2147483647
    AND (job.expires_at IS NULL OR job.expires_at > now())
    AND (job.ordering_key IS NULL OR (SELECT other.id
        FROM job AS other
        WHERE other.ordering_key = job.ordering_key
        AND other.ordering_key IS NOT NULL
        AND other.leased_by IS NOT NULL
        LIMIT 1) IS NULL
      AND job.id = (SELECT first.id
        FROM job AS first
        WHERE first.ordering_key = job.ordering_key
        AND first.ordering_key IS NOT NULL
        AND first.status IN ('blocked', 'pending')
        ORDER BY first.ordering_key, first.created_at, first.id
        LIMIT 1))) AS taken ON true
  UNION ALL
  SELECT in_segment.id AS id
  FROM (SELECT row.first AS first, row.last AS last, row.quota AS quota, row.first_type AS first_type, row.last_type AS last_type, (%(types)s::TEXT[])[row.first_type:row.last_type] AS types
    FROM unnest(%(segment_first)s::INTEGER[], %(segment_last)s::INTEGER[], %(segment_quota)s::INTEGER[], %(segment_first_type)s::INTEGER[], %(segment_last_type)s::INTEGER[]) AS row(first, last, quota, first_type, last_type)
    LIMIT ALL OFFSET 0) AS segment
  JOIN LATERAL (SELECT probe.id AS id
    FROM unnest((%(queues)s::TEXT[])[segment.first:segment.last], (%(fairness_keys)s::TEXT[])[segment.first:segment.last], (%(priorities)s::SMALLINT[])[segment.first:segment.last], (%(cursor_at)s::TIMESTAMP WITH TIME ZONE[])[segment.first:segment.last], (%(cursor_id)s::UUID[])[segment.first:segment.last]) AS lane(queue, fairness_key, priority, cursor_at, cursor_id)
    JOIN LATERAL (SELECT job.id AS id
      FROM job
      WHERE job.status = 'pending'
      AND job.priority >= '-9'
      AND job.queue = lane.queue
      AND job.fairness_key = lane.fairness_key
      AND job.priority = lane.priority
      AND job.scheduled_at <= now()
      AND job.type_name = ANY (segment.types)
      AND coalesce(job.input_version <= (%(versions)s::INTEGER[])[array_position(%(version_types)s::TEXT[], job.type_name)], true)
      AND job.attempt < 2147483647
      AND (job.expires_at IS NULL OR job.expires_at > now())
      AND (job.ordering_key IS NULL OR (SELECT other.id
          FROM job AS other
          WHERE other.ordering_key = job.ordering_key
          AND other.ordering_key IS NOT NULL
          AND other.leased_by IS NOT NULL
          LIMIT 1) IS NULL
        AND job.id = (SELECT first.id
          FROM job AS first
          WHERE first.ordering_key = job.ordering_key
          AND first.ordering_key IS NOT NULL
          AND first.status IN ('blocked', 'pending')
          ORDER BY first.ordering_key, first.created_at, first.id
          LIMIT 1))
      AND (job.scheduled_at, job.id) > (lane.cursor_at, lane.cursor_id)
      AND job.id != ALL (%(apart)s::UUID[])
      ORDER BY job.scheduled_at, job.id
      LIMIT segment.quota) AS probe ON true
    LIMIT segment.quota) AS in_segment ON true
  LIMIT %(limit)s::INTEGER)
SELECT now() AS now, read.changed_xid, read.id, read.type_name, read.queue, read.fairness_key, read.priority, read.chain_id, read.chain_index, read.created_at, read.scheduled_at, read.attempt, read.deduplication_key, read.ordering_key, read.input
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN (SELECT CAST(job.changed_xid AS TEXT) AS changed_xid, job.id AS id, job.type_name AS type_name, job.queue AS queue, job.fairness_key AS fairness_key, job.priority AS priority, job.chain_id AS chain_id, job.chain_index AS chain_index, least(greatest(job.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS created_at, job.scheduled_at AS scheduled_at, job.attempt AS attempt, job.deduplication_key AS deduplication_key, job.ordering_key AS ordering_key, job.input AS input
  FROM job
  WHERE job.id = ANY (array((SELECT picked.id
        FROM picked)))) AS read ON true
