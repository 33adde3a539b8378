WITH locked AS (SELECT row.id AS id
  FROM job AS row
  WHERE row.id = ANY (%(ids)s::UUID[])
  AND row.status IN ('pending', 'blocked')
  AND row.priority != %(to)s::SMALLINT
  ORDER BY row.root_id IS NOT NULL, row.id
  FOR NO KEY UPDATE)
UPDATE job
SET priority=%(to)s::SMALLINT, changed_xid=pg_current_xact_id()
WHERE job.id = ANY (array((SELECT locked.id
      FROM locked)))
RETURNING job.id
