UPDATE job
SET changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT ahead.id
      FROM job AS ahead
      WHERE ahead.status = 'pending'
      AND ahead.changed_xid > '0'
      AND ahead.changed_xid >= pg_snapshot_xmax(pg_current_snapshot())
      LIMIT %(limit)s::INTEGER
      FOR NO KEY UPDATE SKIP LOCKED)))
RETURNING job.id
