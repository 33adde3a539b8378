WITH held AS (SELECT job.id AS id, job.type_name AS type_name, job.leased_by AS leased_by, job.leased_until AS leased_until, job.started_at AS started_at, EXISTS (SELECT 1
    FROM worker
    WHERE worker.id = job.leased_by
    AND worker.heartbeat_at > now() - %(ttl)s) AS is_held
  FROM job
  WHERE job.status = 'running')
SELECT counted.running, counted.orphaned, counted.overdue, longest.job_id, longest.type_name, longest.leased_by, longest.started_at
FROM (SELECT count(*) AS running, count(*) FILTER (WHERE NOT held.is_held) AS orphaned, count(*) FILTER (WHERE held.leased_until < now()) AS overdue
  FROM held) AS counted
LEFT OUTER JOIN (SELECT held.id AS job_id, held.type_name AS type_name, held.leased_by AS leased_by, held.started_at AS started_at
  FROM held
  ORDER BY held.started_at, held.id
  LIMIT 1) AS longest ON true
