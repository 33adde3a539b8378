UPDATE job
SET started_at=now(), leased_until=(now() + (job.leased_until - job.started_at))
WHERE job.id = ANY (array((SELECT ahead.id
      FROM job AS ahead
      WHERE ahead.status = 'running'
      AND ahead.started_at > now() + %(after)s
      LIMIT %(limit)s::INTEGER
      FOR NO KEY UPDATE SKIP LOCKED)))
RETURNING job.id
