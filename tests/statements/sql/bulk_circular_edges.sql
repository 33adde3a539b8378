WITH edge AS MATERIALIZED (SELECT job_stage.id AS job_id, each.chain_id AS chain_id
  FROM job_stage, unnest(job_stage.blockers) WITH ORDINALITY AS each(chain_id, ordinal)
  WHERE job_stage.write_id = %(write_id)s::VARCHAR
  AND job_stage.sequence = %(sequence)s::BIGINT
  AND job_stage.task_id = ANY (%(task_ids)s::BIGINT[])
  AND job_stage.rejected_reason IS NULL
  AND job_stage.blockers IS NOT NULL)
SELECT edge.job_id, edge.chain_id
FROM edge
WHERE edge.chain_id IN (SELECT waiting.job_id
  FROM edge AS waiting)
AND edge.job_id IN (SELECT awaited.chain_id
  FROM edge AS awaited)
