SELECT seen.queue, count(*) AS examined, count(*) FILTER (WHERE seen.created_at > now() - %(window)s) AS arrived, count(*) FILTER (WHERE seen.status = 'completed'
  AND seen.completed_at > now() - %(window)s) AS completed, count(*) FILTER (WHERE seen.status = 'dead'
  AND seen.completed_at > now() - %(window)s) AS dead, count(*) FILTER (WHERE seen.status = 'cancelled'
  AND seen.completed_at > now() - %(window)s) AS cancelled
FROM (SELECT job.queue AS queue, job.status AS status, job.created_at AS created_at, job.completed_at AS completed_at
  FROM job
  WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT) >> 6
  AND (job.created_at > now() - %(window)s OR job.completed_at > now() - %(window)s)
  LIMIT %(limit)s::INTEGER) AS seen
GROUP BY seen.queue
ORDER BY seen.queue
