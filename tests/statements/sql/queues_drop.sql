WITH locked AS (SELECT queue.name AS name
  FROM queue
  WHERE queue.name = ANY (%(names)s::TEXT[])
  AND queue.fairness_key = %(of_key)s::VARCHAR
  ORDER BY queue.name
  FOR UPDATE)
DELETE
FROM queue USING locked
WHERE queue.name = locked.name
AND queue.fairness_key = %(of_key)s::VARCHAR
RETURNING queue.name AS name
