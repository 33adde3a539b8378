WITH free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(locks)s::UUID[])
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), ended AS (UPDATE job
  SET output=CAST((%(outputs)s::TEXT[])[array_position(%(ids)s::UUID[], job.id)] AS JSONB), status='completed', completed_at=now(), completed_by=%(worker_id)s::VARCHAR, last_error=NULL, leased_by=NULL, leased_until=NULL, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER
    AND NOT coalesce(job.id = ANY (%(parents)s::UUID[]), %(coalesce_1)s)) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT free.id
        FROM free)))
  AND job.attempt = (%(attempts)s::INTEGER[])[array_position(%(ids)s::UUID[], job.id)]
  AND job.leased_by = %(worker_id)s::VARCHAR
  AND CAST(job.status AS TEXT) = 'running'
  AND job.chain_id = ANY (array((SELECT free.id
        FROM free)))
  RETURNING job.id, job.chain_id, job.status, job.has_waiters, coalesce(job.id = ANY (%(parents)s::UUID[]), %(coalesce_1)s) AS continues), inserted AS (INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name, input, scheduled_at)
  SELECT given.id AS id, given.chain_id AS chain_id, given.chain_index AS chain_index, given.type_name AS type_name, given.chain_type_name AS chain_type_name, CAST(given.input AS JSONB) AS input, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
  FROM unnest(%(parents)s::UUID[], %(next_id)s::UUID[], %(next_chain_id)s::UUID[], %(next_chain_index)s::INTEGER[], %(next_type_name)s::TEXT[], %(next_chain_type_name)s::TEXT[], %(next_input)s::TEXT[], %(next_delays)s::INTERVAL[], %(next_ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(target, id, chain_id, chain_index, type_name, chain_type_name, input, delay, at)
  WHERE given.target = ANY (array((SELECT ended.id
        FROM ended)))
  RETURNING job.id), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT ended.status
          FROM ended
          WHERE ended.chain_id != ended.id
          AND NOT ended.continues)))[array_position(array((SELECT ended.chain_id
          FROM ended
          WHERE ended.chain_id != ended.id
          AND NOT ended.continues)), job.id)])
  WHERE job.id = ANY (array((SELECT ended.chain_id
        FROM ended
        WHERE ended.chain_id != ended.id
        AND NOT ended.continues)))
  RETURNING job.id, job.has_waiters)
SELECT ended.id, CASE WHEN NOT ended.continues THEN ended.status END AS status, ended.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = ended.chain_id), ended.has_waiters) AS has_waiters
FROM ended
