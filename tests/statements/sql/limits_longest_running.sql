WITH held AS (SELECT job.id AS id, job.queue AS queue, job.fairness_key AS fairness_key, job.type_name AS type_name, job.started_at AS started_at
  FROM job
  WHERE job.status = 'running')
SELECT longest.is_type, longest.name, longest.fairness_key, longest.job_id, longest.started_at
FROM (SELECT of_queues.is_type AS is_type, of_queues.name AS name, of_queues.fairness_key AS fairness_key, of_queues.job_id AS job_id, of_queues.started_at AS started_at
  FROM (SELECT false AS is_type, held.queue AS name, held.fairness_key AS fairness_key, held.id AS job_id, held.started_at AS started_at, row_number() OVER (PARTITION BY held.queue, held.fairness_key
      ORDER BY held.started_at, held.id) AS place
    FROM held) AS of_queues
  WHERE of_queues.place = 1
  UNION ALL
  SELECT of_type.is_type AS is_type, of_type.name AS name, of_type.fairness_key AS fairness_key, of_type.job_id AS job_id, of_type.started_at AS started_at
  FROM (SELECT true AS is_type, held.type_name AS name, '' AS fairness_key, held.id AS job_id, held.started_at AS started_at, row_number() OVER (PARTITION BY held.type_name
      ORDER BY held.started_at, held.id) AS place
    FROM held) AS of_type
  WHERE of_type.place = 1) AS longest
LIMIT %(limit)s::INTEGER
