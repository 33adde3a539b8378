WITH ahead AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.heartbeat_at > now() + %(after)s
  FOR UPDATE SKIP LOCKED)
UPDATE worker
SET heartbeat_at=now()
FROM ahead
WHERE worker.id = ahead.id
RETURNING worker.id
