WITH edge AS MATERIALIZED (SELECT job_stage.id AS job_id, each.chain_id AS chain_id
  FROM job_stage, unnest(job_stage.blockers) WITH ORDINALITY AS each(chain_id, ordinal)
  WHERE job_stage.write_id = %(write_id)s::VARCHAR
  AND job_stage.sequence = %(sequence)s::BIGINT
  AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_stage.rejected_reason IS NULL
  AND job_stage.blockers IS NOT NULL)
SELECT DISTINCT edge.chain_id
FROM edge
WHERE NOT (EXISTS (SELECT "new".id
    FROM job_stage AS "new"
    WHERE "new".write_id = %(write_id)s::VARCHAR
    AND "new".sequence = %(sequence)s::BIGINT
    AND "new".task_id = ANY (%(task_ids)s::BIGINT[])
    AND "new".rejected_reason IS NULL
    AND "new".id = edge.chain_id))
