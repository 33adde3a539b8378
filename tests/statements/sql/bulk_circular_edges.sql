WITH edge AS MATERIALIZED (SELECT job_bulk_staging.id AS job_id, each.chain_id AS chain_id
  FROM job_bulk_staging, unnest(job_bulk_staging.blockers) WITH ORDINALITY AS each(chain_id, ordinal)
  WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
  AND job_bulk_staging.sequence = %(sequence)s::BIGINT
  AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_bulk_staging.rejected_reason IS NULL
  AND job_bulk_staging.blockers IS NOT NULL)
SELECT edge.job_id, edge.chain_id
FROM edge
WHERE edge.chain_id IN (SELECT waiting.job_id
  FROM edge AS waiting)
AND edge.job_id IN (SELECT awaited.chain_id
  FROM edge AS awaited)
