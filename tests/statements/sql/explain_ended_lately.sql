SELECT count(*) AS count_1, CAST(EXTRACT(epoch
    FROM now() - min(lately.completed_at)) AS DOUBLE PRECISION) AS anon_1
FROM (SELECT job.completed_at AS completed_at
  FROM job
  WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT) >> 6
  AND job.status = 'completed'
  AND job.queue = %(queue)s::VARCHAR
  AND job.fairness_key = %(fairness_key)s::VARCHAR
  AND job.completed_at > now() - %(window)s
  LIMIT %(limit)s::INTEGER) AS lately
