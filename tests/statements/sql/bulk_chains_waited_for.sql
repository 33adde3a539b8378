WITH edge AS MATERIALIZED (SELECT job_bulk_staging.id AS job_id, each.chain_id AS chain_id
  FROM job_bulk_staging, unnest(job_bulk_staging.blockers) WITH ORDINALITY AS each(chain_id, ordinal)
  WHERE job_bulk_staging.write_id = %(write_id)s::VARCHAR
  AND job_bulk_staging.sequence = %(sequence)s::BIGINT
  AND job_bulk_staging.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_bulk_staging.rejected_reason IS NULL
  AND job_bulk_staging.blockers IS NOT NULL)
SELECT DISTINCT edge.chain_id
FROM edge
WHERE NOT (EXISTS (SELECT "new".id
    FROM job_bulk_staging AS "new"
    WHERE "new".write_id = %(write_id)s::VARCHAR
    AND "new".sequence = %(sequence)s::BIGINT
    AND "new".task_id = ANY (%(task_ids)s::BIGINT[])
    AND "new".rejected_reason IS NULL
    AND "new".id = edge.chain_id))
