WITH changed AS (UPDATE job
  SET priority=coalesce("new".priority, (SELECT job_type.priority
      FROM job_type
      WHERE job_type.type_name = job.type_name), %(coalesce_1)s::INTEGER), input="new".input, input_version=coalesce("new".input_version, (SELECT job_type.input_version
      FROM job_type
      WHERE job_type.type_name = job.type_name), %(coalesce_2)s::INTEGER), scheduled_at=least("new".greatest_1, job.created_at + CAST(%(max_wait)s AS INTERVAL)), changed_xid=pg_current_xact_id()
  FROM (SELECT given.deduplication_key AS deduplication_key, CAST(given.input AS JSONB) AS input, given.input_version AS input_version, given.priority AS priority, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1, given.target AS target
    FROM unnest(%(ids)s::UUID[], %(next_deduplication_key)s::TEXT[], %(next_input)s::TEXT[], %(next_input_version)s::INTEGER[], %(next_priority)s::SMALLINT[], %(next_delays)s::INTERVAL[], %(next_ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(target, deduplication_key, input, input_version, priority, delay, at)) AS "new"
  WHERE job.id = "new".target
  AND job.id = ANY (%(ids)s::UUID[])
  AND job.deduplication_key = "new".deduplication_key
  AND job.status IN ('pending', 'blocked')
  RETURNING job.id)
SELECT changed.id
FROM changed
