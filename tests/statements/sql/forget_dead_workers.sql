WITH dead AS (SELECT worker.id AS id
  FROM worker
  WHERE worker.heartbeat_at < now() - %(after)s
  AND NOT (EXISTS (SELECT 1
      FROM job
      WHERE job.status = 'running'
      AND job.leased_by = worker.id
      LIMIT ALL OFFSET 0))
  FOR UPDATE SKIP LOCKED)
DELETE
FROM worker USING dead
WHERE worker.id = dead.id
