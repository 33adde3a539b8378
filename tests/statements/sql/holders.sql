SELECT given.type_name, given.key, job.id, job.queue, job.fairness_key
FROM unnest(%(type_names)s::TEXT[], %(keys)s::TEXT[]) AS given(type_name, key)
JOIN job ON true
WHERE job.chain_type_name = given.type_name
AND job.deduplication_key = given.key
AND job.deduplication_key IS NOT NULL
AND job.chain_index = 0
AND job.chain_completed_at IS NULL
