SELECT seen.outcome, count(*) AS n
FROM (SELECT job_attempt.outcome AS outcome
  FROM job_attempt
  WHERE job_attempt.changed_xid >= CAST(CAST(greatest(CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - %(transactions)s::BIGINT, 0) AS TEXT) AS xid8)
  AND job_attempt.ended_at > now() - %(window)s
  LIMIT %(limit)s::INTEGER) AS seen
GROUP BY seen.outcome
ORDER BY seen.outcome
