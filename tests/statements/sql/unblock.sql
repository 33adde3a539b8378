WITH examined AS (SELECT chain.id AS chain_id, reached.place AS place, reached.job_id AS job_id, chain.outcome != %(outcome_1)s::VARCHAR
  AND reached.on_failure = %(on_failure_1)s AS fails
  FROM unnest(%(chains)s::UUID[], %(outcomes)s::TEXT[], %(afters)s::UUID[]) AS chain(id, outcome, after)
  JOIN LATERAL (SELECT edge.ctid AS place, edge.job_id AS job_id, edge.on_failure AS on_failure
    FROM job_blocker AS edge
    WHERE edge.blocked_by_chain_id = chain.id
    AND edge.job_id > chain.after
    AND NOT edge.is_resolved
    AND edge.job_id != ALL (%(excluded)s::UUID[])
    AND (chain.outcome = %(outcome_1)s::VARCHAR OR edge.on_failure != %(on_failure_2)s)
    ORDER BY edge.blocked_by_chain_id, edge.job_id
    LIMIT %(limit)s::INTEGER) AS reached ON true
  LIMIT %(limit)s::INTEGER), waiting AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.id = ANY (array((SELECT examined.job_id
        FROM examined)))), locked AS (SELECT row.id AS id, row.root_id AS root_id, row.status = 'blocked' AS was_blocked
  FROM job AS row
  WHERE row.id = ANY (array_cat(array((SELECT waiting.id
          FROM waiting)), array((SELECT waiting.root_id
          FROM waiting
          WHERE waiting.root_id IS NOT NULL))))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), usable AS (SELECT examined.chain_id AS chain_id, examined.place AS place, examined.job_id AS job_id, examined.fails AS fails
  FROM examined
  WHERE examined.job_id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
              FROM locked))))))), closed AS (UPDATE job_blocker
  SET is_resolved=%(param_1)s
  WHERE job_blocker.ctid = ANY (array((SELECT usable.place
        FROM usable
        WHERE NOT usable.fails)))
  RETURNING job_blocker.job_id), counted AS (SELECT usable.job_id AS job_id, CAST(count(*) FILTER (WHERE NOT usable.fails) AS INTEGER) AS closing, bool_or(usable.fails) AS fails
  FROM usable
  GROUP BY usable.job_id), changed AS (UPDATE job
  SET status=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN 'dead' WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN 'pending' ELSE job.status END, open_blockers=greatest(job.open_blockers - coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0), 0), scheduled_at=CASE WHEN (job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN greatest(job.scheduled_at, now()) ELSE job.scheduled_at END, completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN now() ELSE job.completed_at END, last_error=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))) THEN jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR) ELSE job.last_error END, chain_completed_at=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails)))
    AND job.chain_index = %(chain_index_1)s::INTEGER OR job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN now() ELSE job.chain_completed_at END, changed_xid=CASE WHEN (job.status = 'blocked'
    AND job.id = ANY (array((SELECT counted.job_id
          FROM counted
          WHERE counted.fails))) OR job.status = 'blocked'
    AND NOT (job.status = 'blocked'
      AND job.id = ANY (array((SELECT counted.job_id
            FROM counted
            WHERE counted.fails))))
    AND job.open_blockers <= coalesce((array((SELECT counted.closing
            FROM counted)))[array_position(array((SELECT counted.job_id
            FROM counted)), job.id)], 0)) THEN pg_current_xact_id() ELSE job.changed_xid END, chain_status=CASE WHEN (job.id = ANY (array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails))))))) THEN 'dead' ELSE job.chain_status END
  WHERE job.id = ANY (array_cat(array((SELECT counted.job_id
          FROM counted)), array((SELECT locked.root_id
          FROM locked
          WHERE locked.was_blocked
          AND locked.root_id IS NOT NULL
          AND locked.id = ANY (array((SELECT counted.job_id
                FROM counted
                WHERE counted.fails)))))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), moved AS (SELECT changed.id AS id, changed.status AS status, changed.attempt AS attempt, changed.started_at AS started_at, changed.chain_id AS chain_id, changed.queue AS queue, changed.fairness_key AS fairness_key, changed.type_name AS type_name, changed.input AS input, changed.input_version AS input_version, changed.last_error AS last_error, changed.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM changed
  WHERE changed.id = ANY (array((SELECT locked.id
        FROM locked
        WHERE locked.was_blocked)))
  AND CAST(changed.status AS TEXT) != %(param_3)s::VARCHAR), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[moved.n] AS anon_1, moved.id AS id, moved.chain_id AS chain_id, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.input AS input, moved.input_version AS input_version, 'blocker_failed', moved.last_error AS last_error, %(param_2)s::VARCHAR AS anon_2, moved.attempt AS attempt
  FROM moved
  WHERE CAST(moved.status AS TEXT) = %(param_4)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id())
SELECT "both".chain_id, "both".job_id, "both".held, "both".status, "both".queue, "both".fairness_key, "both".type_name, "both".attempt, "both".has_waiters
FROM (SELECT moved.chain_id AS chain_id, moved.id AS job_id, false AS held, CAST(moved.status AS TEXT) AS status, moved.queue AS queue, moved.fairness_key AS fairness_key, moved.type_name AS type_name, moved.attempt AS attempt, coalesce((SELECT changed.has_waiters
      FROM changed
      WHERE changed.id = moved.chain_id), moved.has_waiters) AS has_waiters
  FROM moved
  UNION ALL
  SELECT examined.chain_id AS chain_id, examined.job_id AS job_id, NOT (examined.job_id = ANY (array((SELECT locked.id
          FROM locked
          WHERE locked.root_id IS NULL OR locked.root_id = ANY (array((SELECT locked.id
                FROM locked))))))) AS held, CAST(NULL AS TEXT) AS anon_3, CAST(NULL AS TEXT) AS anon__1, CAST(NULL AS TEXT) AS anon__2, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS INTEGER) AS anon__4, CAST(NULL AS BOOLEAN) AS anon__5
  FROM examined) AS "both"
