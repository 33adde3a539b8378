SELECT seen.queue, seen.fairness_key, count(*) AS started
FROM (SELECT job.queue AS queue, job.fairness_key AS fairness_key
  FROM job
  WHERE CAST(CAST(job.changed_xid AS TEXT) AS BIGINT) >> 6 >= (CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT) >> 6
  AND job.started_at > now() - %(window)s
  LIMIT %(limit)s::INTEGER) AS seen
GROUP BY seen.queue, seen.fairness_key
