INSERT INTO job (id, type_name, chain_id, chain_type_name, input, deduplication_key, scheduled_at)
SELECT given.id, given.type_name, given.chain_id, given.chain_type_name, CAST(given.input AS JSONB) AS input, given.deduplication_key, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
FROM unnest(%(id)s::UUID[], %(type_name)s::TEXT[], %(chain_id)s::UUID[], %(chain_type_name)s::TEXT[], %(input)s::TEXT[], %(deduplication_key)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(id, type_name, chain_id, chain_type_name, input, deduplication_key, delay, at)
ON CONFLICT (chain_type_name, deduplication_key)
WHERE deduplication_key IS NOT NULL
AND chain_index = 0
AND chain_completed_at IS NULL DO NOTHING
