WITH free AS (SELECT root.id AS id
  FROM job AS root
  WHERE root.id = %(awaited_id)s::UUID
  AND root.chain_index = %(chain_index_1)s::INTEGER
  AND root.chain_completed_at IS NULL
  AND NOT root.has_waiters
  FOR NO KEY UPDATE SKIP LOCKED)
UPDATE job
SET has_waiters=true
WHERE job.id = (SELECT free.id
  FROM free)
RETURNING job.id
