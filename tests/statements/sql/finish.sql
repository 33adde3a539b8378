WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(locks)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), ended AS (UPDATE job
  SET status=CAST((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS job_status), scheduled_at=CASE WHEN ((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] = %(param_1)s::VARCHAR) THEN greatest((%(ats)s::TIMESTAMP WITH TIME ZONE[])[array_position(%(ids)s::UUID[], job.id)], now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, (%(delays)s::DOUBLE PRECISION[])[array_position(%(ids)s::UUID[], job.id)])) ELSE job.scheduled_at END, completed_at=CASE WHEN ((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] != %(param_2)s::VARCHAR) THEN now() END, max_attempts=(least(job.max_attempts, 2147483647 - (%(uncounted)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]) + (%(uncounted)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]), last_error=coalesce(CAST((%(errors)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), job.last_error), leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN ((%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] != %(param_3)s::VARCHAR
    AND job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT free.id
        FROM free)))
  AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
  AND job.leased_by = %(worker_id)s::VARCHAR
  AND CAST(job.status AS TEXT) = 'running'
  AND job.chain_id = ANY (array((SELECT free.id
        FROM free)))
  RETURNING job.id, job.status, job.attempt, job.started_at, job.chain_id, job.queue, job.fairness_key, job.type_name, job.input, job.input_version, job.has_waiters), history AS (INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, outcome, error, error_fingerprint)
  SELECT ended.id AS id, ended.attempt AS attempt, %(worker_id)s::VARCHAR AS anon_1, ended.started_at AS started_at, (%(outcomes)s::job_attempt_outcome[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_2, CAST((%(errors)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS JSONB) AS anon_3, (%(fingerprints)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_4
  FROM ended
  ON CONFLICT (job_id, attempt) DO NOTHING), buried AS (INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error, error_fingerprint, attempts)
  SELECT (%(dead_letter_ids)s::UUID[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_5, ended.id AS id, ended.chain_id AS chain_id, ended.queue AS queue, ended.fairness_key AS fairness_key, ended.type_name AS type_name, ended.input AS input, ended.input_version AS input_version, (%(reasons)s::dead_letter_reason[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_6, CAST((%(errors)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS JSONB) AS anon_3, (%(fingerprints)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] AS anon_4, ended.attempt AS attempt
  FROM ended
  WHERE (%(statuses)s::TEXT[])[array_position(%(ids)s::UUID[], ended.id)] = %(param_4)s::VARCHAR
  ON CONFLICT (job_id)
  WHERE resolution IS NULL DO
  UPDATE
  SET chain_id = excluded.chain_id, queue = excluded.queue, fairness_key = excluded.fairness_key, type_name = excluded.type_name, input = excluded.input, input_version = excluded.input_version, reason = excluded.reason, error = excluded.error, error_fingerprint = excluded.error_fingerprint, attempts = excluded.attempts, died_at = now(), changed_xid = pg_current_xact_id()), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT ended.status
          FROM ended
          WHERE ended.chain_id != ended.id
          AND CAST(ended.status AS TEXT) != %(param_5)s::VARCHAR)))[array_position(array((SELECT ended.chain_id
          FROM ended
          WHERE ended.chain_id != ended.id
          AND CAST(ended.status AS TEXT) != %(param_5)s::VARCHAR)), job.id)])
  WHERE job.id = ANY (array((SELECT ended.chain_id
        FROM ended
        WHERE ended.chain_id != ended.id
        AND CAST(ended.status AS TEXT) != %(param_5)s::VARCHAR)))
  RETURNING job.id, job.has_waiters)
SELECT ended.id, ended.status, ended.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = ended.chain_id), ended.has_waiters) AS has_waiters
FROM ended
