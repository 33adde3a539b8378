SELECT lost.id, lost.leased_by, lost.chain_id, lost.attempt, lost.max_attempts, lost.type_name, lost.reason
FROM (SELECT dead.id AS id, dead.leased_by AS leased_by, dead.chain_id AS chain_id, dead.attempt AS attempt, dead.max_attempts AS max_attempts, dead.type_name AS type_name, %(param_1)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.chain_id AS chain_id, job.attempt AS attempt, job.max_attempts AS max_attempts, job.type_name AS type_name
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS dead ON true
  WHERE worker.heartbeat_at + worker.heartbeat_pause + %(ttl)s < now()
  UNION ALL
  SELECT expired.id AS id, expired.leased_by AS leased_by, expired.chain_id AS chain_id, expired.attempt AS attempt, expired.max_attempts AS max_attempts, expired.type_name AS type_name, %(param_2)s::VARCHAR AS reason
  FROM worker
  JOIN LATERAL (SELECT job.id AS id, job.leased_by AS leased_by, job.chain_id AS chain_id, job.attempt AS attempt, job.max_attempts AS max_attempts, job.type_name AS type_name
    FROM job
    WHERE job.status = 'running'
    AND job.id != ALL (%(excluded)s::UUID[])
    AND job.leased_by = worker.id
    AND job.leased_until < now()
    LIMIT %(limit)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED) AS expired ON true
  WHERE worker.heartbeat_at + worker.heartbeat_pause + %(ttl)s >= now()) AS lost
LIMIT %(limit)s::INTEGER
