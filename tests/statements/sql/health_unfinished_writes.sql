WITH RECURSIVE staged(write_id, sequence, staged_at) AS (SELECT first.write_id AS write_id, first.sequence AS sequence, first.staged_at AS staged_at
  FROM (SELECT job_bulk_staging.write_id AS write_id, job_bulk_staging.sequence AS sequence, job_bulk_staging.staged_at AS staged_at
    FROM job_bulk_staging
    ORDER BY job_bulk_staging.write_id, job_bulk_staging.sequence
    LIMIT 1) AS first
  UNION ALL
  SELECT following.write_id AS write_id, following.sequence AS sequence, following.staged_at AS staged_at
  FROM staged
  JOIN LATERAL (SELECT job_bulk_staging.write_id AS write_id, job_bulk_staging.sequence AS sequence, job_bulk_staging.staged_at AS staged_at
    FROM job_bulk_staging
    WHERE (job_bulk_staging.write_id, job_bulk_staging.sequence) > (staged.write_id, staged.sequence)
    ORDER BY job_bulk_staging.write_id, job_bulk_staging.sequence
    LIMIT 1) AS following ON true)
SELECT count(*) OVER () AS unfinished, found.write_id, found.sequence, found.staged_at
FROM (SELECT staged.write_id AS write_id, staged.sequence AS sequence, staged.staged_at AS staged_at
  FROM staged
  WHERE NOT (EXISTS (SELECT 1
      FROM job_bulk_write
      WHERE job_bulk_write.write_id = staged.write_id
      AND job_bulk_write.sequence = staged.sequence))
  LIMIT %(limit)s::INTEGER) AS found
ORDER BY found.staged_at
LIMIT 1
