INSERT INTO job (id, chain_id, type_name, chain_type_name, input, scheduled_at)
SELECT given.id, given.chain_id, given.type_name, given.chain_type_name, CAST(given.input AS JSONB) AS input, greatest(given.at, now() + coalesce(given.delay, interval '0')) AS greatest_1
FROM unnest(%(id)s::UUID[], %(chain_id)s::UUID[], %(type_name)s::TEXT[], %(chain_type_name)s::TEXT[], %(input)s::TEXT[], %(delays)s::INTERVAL[], %(ats)s::TIMESTAMP WITH TIME ZONE[]) AS given(id, chain_id, type_name, chain_type_name, input, delay, at)
