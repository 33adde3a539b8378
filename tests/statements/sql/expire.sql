WITH late AS (SELECT job.id AS id, job.root_id AS root_id
  FROM job
  WHERE job.status = 'pending'
  AND job.expires_at IS NOT NULL
  AND job.expires_at <= now()
  AND job.id != ALL (%(excluded)s::UUID[])
  ORDER BY job.expires_at
  LIMIT %(limit)s::INTEGER
  FOR NO KEY UPDATE SKIP LOCKED), free AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (array((SELECT late.root_id
        FROM late
        WHERE late.root_id IS NOT NULL)))
  ORDER BY row.id
  FOR NO KEY UPDATE SKIP LOCKED), expired AS (UPDATE job
  SET status='cancelled', completed_at=now(), last_error=CASE WHEN (job.deadline <= now()) THEN jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, concat(%(concat_1)s::VARCHAR, job.deadline)) ELSE jsonb_build_object(%(jsonb_build_object_4)s::VARCHAR, %(jsonb_build_object_5)s::VARCHAR, %(jsonb_build_object_6)s::VARCHAR, concat(%(concat_2)s::VARCHAR, job.expires_at, %(concat_3)s::VARCHAR)) END, chain_completed_at=CASE WHEN (job.chain_index = %(chain_index_1)s::INTEGER) THEN now() END, changed_xid=pg_current_xact_id()
  WHERE job.id = ANY (array((SELECT late.id
        FROM late)))
  AND (job.root_id IS NULL OR job.root_id = ANY (array((SELECT free.id
          FROM free))))
  RETURNING job.id, job.type_name, job.attempt, job.chain_id, job.status, job.has_waiters), roots AS (UPDATE job
  SET chain_completed_at=now(), chain_status=((array((SELECT expired.status
          FROM expired
          WHERE expired.chain_id != expired.id)))[array_position(array((SELECT expired.chain_id
          FROM expired
          WHERE expired.chain_id != expired.id)), job.id)])
  WHERE job.id = ANY (array((SELECT expired.chain_id
        FROM expired
        WHERE expired.chain_id != expired.id)))
  RETURNING job.id, job.has_waiters)
SELECT expired.id, expired.type_name, expired.attempt, expired.chain_id, coalesce((SELECT roots.has_waiters
    FROM roots
    WHERE roots.id = expired.chain_id), expired.has_waiters) AS has_waiters
FROM expired
