SELECT job.fairness_key, count(*) AS n, CAST(least(min(job.changed_xid), pg_snapshot_xmin(pg_current_snapshot())) AS TEXT) AS since
FROM job
WHERE job.status = 'running'
AND job.changed_xid >= CAST(%(since)s::VARCHAR AS xid8)
AND job.queue = %(queue)s::VARCHAR
GROUP BY job.fairness_key
