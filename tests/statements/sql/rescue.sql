WITH lost AS (SELECT dead.id AS id, dead.leased_by AS leased_by, dead.root_id AS root_id, %(param_1)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS dead ON true
  WHERE worker.heartbeat_at + worker.heartbeat_pause + %(ttl)s < now()
  UNION ALL
  SELECT expired.id AS id, expired.leased_by AS leased_by, expired.root_id AS root_id, %(param_2)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.root_id AS root_id
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    AND job.leased_until < now()
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS expired ON true
  WHERE worker.heartbeat_at + worker.heartbeat_pause + %(ttl)s >= now()
  LIMIT %(limit)s::INTEGER), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT lost.root_id
        FROM lost
        WHERE lost.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), back AS (UPDATE job
  SET status=CAST(CASE WHEN (job.attempt >= job.max_attempts) THEN 'dead' ELSE 'pending' END AS job_status), scheduled_at=CASE WHEN (job.attempt >= job.max_attempts) THEN job.scheduled_at ELSE now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, least(%(cap)s, %(base)s * power(%(power_1)s::INTEGER, least(job.attempt, %(least_1)s::INTEGER) - %(least_2)s::INTEGER)) * random()) END, completed_at=CASE WHEN (job.attempt >= job.max_attempts) THEN now() END, last_error=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, CASE WHEN ((SELECT lost.reason
        FROM lost
        WHERE lost.id = job.id) = %(param_4)s::VARCHAR) THEN concat(%(concat_1)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_2)s::VARCHAR) ELSE concat(%(concat_3)s::VARCHAR, (SELECT lost.leased_by
        FROM lost
        WHERE lost.id = job.id), %(concat_4)s::VARCHAR) END, %(jsonb_build_object_4)s::VARCHAR, (SELECT lost.leased_by
      FROM lost
      WHERE lost.id = job.id)), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.attempt >= job.max_attempts
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT lost.id
        FROM lost)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.last_error, job.has_waiters), numbered AS (SELECT back.id AS id, back.status AS status, back.attempt AS attempt, back.started_at AS started_at, back.chain_id AS chain_id, back.queue AS queue, back.fairness_key AS fairness_key, back.type_name AS type_name, back.input AS input, back.input_version AS input_version, back.last_error AS last_error, back.has_waiters AS has_waiters, row_number() OVER () AS n
  FROM back), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT numbered.id AS id, numbered.attempt AS attempt, (SELECT lost.leased_by
    FROM lost
    WHERE lost.id = numbered.id) AS anon_1, numbered.started_at AS started_at, %(param_3)s::VARCHAR AS anon_2, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3
  FROM numbered
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[numbered.n] AS anon_4, numbered.id AS id, numbered.chain_id AS chain_id, numbered.queue AS queue, numbered.fairness_key AS fairness_key, numbered.type_name AS type_name, numbered.input AS input, numbered.input_version AS input_version, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon_3, numbered.last_error AS last_error, (SELECT lost.reason
    FROM lost
    WHERE lost.id = numbered.id) AS anon__1, numbered.attempt AS attempt
  FROM numbered
  WHERE CAST(numbered.status AS TEXT) = %(param_5)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT back.status
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)))[array_position(array((SELECT back.chain_id
          FROM back
          WHERE back.chain_id != back.id
          AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT back.chain_id
        FROM back
        WHERE back.chain_id != back.id
        AND CAST(back.status AS TEXT) = %(param_6)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT numbered.id, numbered.type_name, numbered.attempt, numbered.status, (SELECT lost.leased_by
  FROM lost
  WHERE lost.id = numbered.id) AS worker_id, numbered.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = numbered.chain_id), numbered.has_waiters) AS has_waiters
FROM numbered
