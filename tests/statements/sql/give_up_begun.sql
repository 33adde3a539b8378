UPDATE job
SET deduplication_key=NULL
FROM unnest(%(type_names)s::TEXT[], %(keys)s::TEXT[]) AS given(type_name, key)
WHERE job.chain_type_name = given.type_name
AND job.deduplication_key = given.key
AND job.deduplication_key IS NOT NULL
AND job.chain_index = 0
AND job.chain_completed_at IS NULL
AND (job.status NOT IN ('pending', 'blocked'))
