WITH locked AS (SELECT queue.name AS name
  FROM queue
  WHERE queue.name = ANY (%(names)s::TEXT[])
  AND queue.paused_at IS NOT NULL
  ORDER BY queue.name
  FOR NO KEY UPDATE)
UPDATE queue
SET paused_at=NULL, paused_by=NULL, updated_at=now()
FROM locked
WHERE queue.name = locked.name
RETURNING queue.name AS name
