WITH locked AS (SELECT queue.name AS name
  FROM queue
  WHERE queue.name = ANY (%(names)s::TEXT[])
  AND queue.fairness_key = %(of_key)s::VARCHAR
  AND queue.paused_at IS NOT NULL
  ORDER BY queue.name
  FOR NO KEY UPDATE)
UPDATE queue
SET paused_at=NULL, paused_by=NULL, updated_at=now()
FROM locked
WHERE queue.name = locked.name
AND queue.fairness_key = %(of_key)s::VARCHAR
RETURNING queue.name AS name
