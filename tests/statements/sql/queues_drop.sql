WITH locked AS (SELECT queue.name AS name
  FROM queue
  WHERE queue.name = ANY (%(names)s::TEXT[])
  ORDER BY queue.name
  FOR UPDATE)
DELETE
FROM queue USING locked
WHERE queue.name = locked.name
RETURNING queue.name AS name
