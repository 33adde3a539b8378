WITH chosen AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.id = ANY (%(param_1)s::TEXT[])
  AND worker.name LIKE %(name_1)s::VARCHAR ESCAPE '\'
  AND worker.queues && %(param_2)s::TEXT[]
  ORDER BY worker.id
  FOR NO KEY UPDATE)
UPDATE worker
SET concurrency_requested=%(requested)s::INTEGER
FROM chosen
WHERE worker.id = chosen.id
RETURNING worker.id
