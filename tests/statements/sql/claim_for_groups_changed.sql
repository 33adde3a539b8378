WITH freed AS (SELECT first.id AS id, first.type_name AS type_name, first.queue AS queue, first.fairness_key AS fairness_key, first.priority AS priority, first.scheduled_at AS scheduled_at, first.changed_xid AS changed_xid, first.status AS status
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
  WHERE first.status = 'pending'), picked AS (SELECT taken.id AS id
  FROM (SELECT row.quota AS quota, row.first_share AS first_share, row.last_share AS last_share, row.first_type AS first_type, row.last_type AS last_type, row.first_lane AS first_lane, row.last_lane AS last_lane, row.most_behind AS most_behind, row.first_xip AS first_xip, row.last_xip AS last_xip, row.xmax AS xmax, row.highest_floor AS highest_floor, (%(types)s::TEXT[])[row.first_type:row.last_type] AS types
    FROM unnest(%(group_quota)s::INTEGER[], %(group_first_share)s::INTEGER[], %(group_last_share)s::INTEGER[], %(group_first_type)s::INTEGER[], %(group_last_type)s::INTEGER[], %(group_first_lane)s::INTEGER[], %(group_last_lane)s::INTEGER[], %(group_most_behind)s::INTEGER[], %(group_first_xip)s::INTEGER[], %(group_last_xip)s::INTEGER[], %(group_xmax)s::TEXT[], %(group_highest_floor)s::TIMESTAMP WITH TIME ZONE[]) AS row(quota, first_share, last_share, first_type, last_type, first_lane, last_lane, most_behind, first_xip, last_xip, xmax, highest_floor)
    LIMIT ALL OFFSET 0) AS of_group
  JOIN LATERAL (SELECT behind.id AS id
    FROM (SELECT in_flight.id AS id
      FROM unnest(CAST((%(xip)s::TEXT[])[of_group.first_xip:of_group.last_xip] AS xid8[])) AS "then"(xid)
      JOIN LATERAL (SELECT job.id AS id
        FROM job
        WHERE job.status = 'pending'
        AND job.scheduled_at <= now()
        AND job.type_name = ANY (of_group.types)
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
            AND NOT (coalesce(first.skip_while_retrying, false)
              AND first.status = 'pending'
              AND first.attempt > 0
              AND first.scheduled_at > now())
            ORDER BY first.ordering_key, first.created_at, first.id
            LIMIT 1))
        AND job.changed_xid > '0'
        AND job.scheduled_at <= of_group.highest_floor
        AND (EXISTS (SELECT 1
            FROM unnest((%(queues)s::TEXT[])[of_group.first_lane:of_group.last_lane], (%(fairness_keys)s::TEXT[])[of_group.first_lane:of_group.last_lane], (%(priorities)s::SMALLINT[])[of_group.first_lane:of_group.last_lane], (%(floor_at)s::TIMESTAMP WITH TIME ZONE[])[of_group.first_lane:of_group.last_lane], (%(floor_id)s::UUID[])[of_group.first_lane:of_group.last_lane]) AS floor(queue, fairness_key, priority, floor_at, floor_id)
            WHERE job.queue = floor.queue
            AND job.fairness_key = floor.fairness_key
            AND job.priority = floor.priority
            AND (job.scheduled_at, job.id) <= (floor.floor_at, floor.floor_id)))
        AND job.changed_xid >= "then".xid
        AND job.changed_xid <= "then".xid
        ORDER BY job.changed_xid
        LIMIT of_group.quota
        FOR NO KEY UPDATE SKIP LOCKED) AS in_flight ON true
      UNION ALL
      SELECT since.id AS id
      FROM (SELECT job.id AS id
        FROM job
        WHERE job.status = 'pending'
        AND job.scheduled_at <= now()
        AND job.type_name = ANY (of_group.types)
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
            AND NOT (coalesce(first.skip_while_retrying, false)
              AND first.status = 'pending'
              AND first.attempt > 0
              AND first.scheduled_at > now())
            ORDER BY first.ordering_key, first.created_at, first.id
            LIMIT 1))
        AND job.changed_xid > '0'
        AND job.scheduled_at <= of_group.highest_floor
        AND (EXISTS (SELECT 1
            FROM unnest((%(queues)s::TEXT[])[of_group.first_lane:of_group.last_lane], (%(fairness_keys)s::TEXT[])[of_group.first_lane:of_group.last_lane], (%(priorities)s::SMALLINT[])[of_group.first_lane:of_group.last_lane], (%(floor_at)s::TIMESTAMP WITH TIME ZONE[])[of_group.first_lane:of_group.last_lane], (%(floor_id)s::UUID[])[of_group.first_lane:of_group.last_lane]) AS floor(queue, fairness_key, priority, floor_at, floor_id)
            WHERE job.queue = floor.queue
            AND job.fairness_key = floor.fairness_key
            AND job.priority = floor.priority
            AND (job.scheduled_at, job.id) <= (floor.floor_at, floor.floor_id)))
        AND job.changed_xid >= CAST(of_group.xmax AS xid8)
        ORDER BY job.changed_xid
        LIMIT of_group.quota
        FOR NO KEY UPDATE SKIP LOCKED) AS since
      UNION ALL
      SELECT next_of_keys.id AS id
      FROM (SELECT job.id AS id
        FROM job
        WHERE job.status = 'pending'
        AND job.scheduled_at <= now()
        AND job.type_name = ANY (of_group.types)
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
            AND NOT (coalesce(first.skip_while_retrying, false)
              AND first.status = 'pending'
              AND first.attempt > 0
              AND first.scheduled_at > now())
            ORDER BY first.ordering_key, first.created_at, first.id
            LIMIT 1))
        AND job.id = ANY (array((SELECT freed.id
              FROM freed
              WHERE freed.type_name = ANY (of_group.types)
              AND freed.changed_xid < CAST(of_group.xmax AS xid8)
              AND freed.changed_xid != ALL (CAST((%(xip)s::TEXT[])[of_group.first_xip:of_group.last_xip] AS xid8[]))
              AND freed.scheduled_at <= of_group.highest_floor
              AND (EXISTS (SELECT 1
                  FROM unnest((%(queues)s::TEXT[])[of_group.first_lane:of_group.last_lane], (%(fairness_keys)s::TEXT[])[of_group.first_lane:of_group.last_lane], (%(priorities)s::SMALLINT[])[of_group.first_lane:of_group.last_lane], (%(floor_at)s::TIMESTAMP WITH TIME ZONE[])[of_group.first_lane:of_group.last_lane], (%(floor_id)s::UUID[])[of_group.first_lane:of_group.last_lane]) AS floor(queue, fairness_key, priority, floor_at, floor_id)
                  WHERE freed.queue = floor.queue
                  AND freed.fairness_key = floor.fairness_key
                  AND freed.priority = floor.priority
                  AND (freed.scheduled_at, freed.id) <= (floor.floor_at, floor.floor_id))))))
        LIMIT of_group.quota
        FOR NO KEY UPDATE SKIP LOCKED) AS next_of_keys
      LIMIT of_group.most_behind) AS behind
    UNION ALL
    SELECT block.id AS id
    FROM unnest((%(firsts)s::INTEGER[])[of_group.first_share:of_group.last_share], (%(lasts)s::INTEGER[])[of_group.first_share:of_group.last_share], (%(quotas)s::INTEGER[])[of_group.first_share:of_group.last_share]) AS share(first, last, quota)
    JOIN LATERAL (SELECT probe.id AS id
      FROM unnest((%(queues)s::TEXT[])[share.first:share.last], (%(fairness_keys)s::TEXT[])[share.first:share.last], (%(priorities)s::SMALLINT[])[share.first:share.last], (%(floor_at)s::TIMESTAMP WITH TIME ZONE[])[share.first:share.last], (%(floor_id)s::UUID[])[share.first:share.last]) AS lane(queue, fairness_key, priority, floor_at, floor_id)
      JOIN LATERAL (SELECT job.id AS id
        FROM job
        WHERE job.status = 'pending'
        AND job.scheduled_at <= now()
        AND job.type_name = ANY (of_group.types)
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
            AND NOT (coalesce(first.skip_while_retrying, false)
              AND first.status = 'pending'
              AND first.attempt > 0
              AND first.scheduled_at > now())
            ORDER BY first.ordering_key, first.created_at, first.id
            LIMIT 1))
        AND job.priority >= '-9'
        AND job.queue = lane.queue
        AND job.fairness_key = lane.fairness_key
        AND job.priority = lane.priority
        AND (job.scheduled_at, job.id) > (lane.floor_at, lane.floor_id)
        ORDER BY job.scheduled_at, job.id
        LIMIT of_group.quota
        FOR NO KEY UPDATE SKIP LOCKED) AS probe ON true
      LIMIT share.quota) AS block ON true
    LIMIT of_group.quota) AS taken ON true
  LIMIT %(limit)s::INTEGER), claimed AS (UPDATE job
  SET status='running', started_at=now(), attempt=(job.attempt + %(attempt_1)s::INTEGER), leased_by=%(worker_id)s::VARCHAR, leased_until=(now() + job.timeout + %(grace)s), changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT picked.id
        FROM picked)))
  RETURNING job.id, job.type_name, job.queue, job.fairness_key, job.priority, job.chain_id, job.chain_type_name, job.chain_index, job.input, job.input_version, job.attempt, job.max_attempts, job.timeout, least(greatest(job.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS created_at, job.scheduled_at, job.started_at, job.trace_context, job.chain_trace_context, job.ordering_key, job.rate_cost, CASE WHEN (job.attempt > 1
    AND pg_column_size(job.last_error) <= 131072) THEN job.last_error END AS last_error, CASE WHEN (job.attempt > 1) THEN (SELECT least(greatest(job_attempt.ended_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') AS least_1
    FROM job_attempt
    WHERE job_attempt.job_id = job.id
    AND job_attempt.attempt = job.attempt - 1) END AS last_attempt_ended_at)
SELECT now() AS now, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax, ARRAY(SELECT x::text
  FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS xip, claimed.id, claimed.type_name, claimed.queue, claimed.fairness_key, claimed.priority, claimed.chain_id, claimed.chain_type_name, claimed.chain_index, claimed.input, claimed.input_version, claimed.attempt, claimed.max_attempts, claimed.timeout, claimed.created_at, claimed.scheduled_at, claimed.started_at, claimed.trace_context, claimed.chain_trace_context, claimed.ordering_key, claimed.rate_cost, claimed.last_error, claimed.last_attempt_ended_at
FROM (SELECT 1 AS one) AS here
LEFT OUTER JOIN claimed ON true
