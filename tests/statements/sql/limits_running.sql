SELECT count(*) FILTER (WHERE job.queue = %(queue)s::VARCHAR) AS anon_1, count(*) FILTER (WHERE job.type_name = %(type_name)s::VARCHAR) AS anon_2, CAST(least(min(job.changed_xid) FILTER (WHERE job.queue = %(queue)s::VARCHAR OR job.type_name = %(type_name)s::VARCHAR), pg_snapshot_xmin(pg_current_snapshot())) AS TEXT) AS since
FROM job
WHERE job.status = 'running'
AND job.changed_xid >= CAST(%(since)s::VARCHAR AS xid8)
