INSERT INTO rate_state (is_type, name, fairness_key, tokens, starts, spent_at)
SELECT first.is_type, first.name, first.fairness_key, first.tokens, CAST(first.starts AS BIGINT[]) AS starts, now() AS now_1
FROM unnest(%(is_types)s::BOOLEAN[], %(names)s::TEXT[], %(fairness_keys)s::TEXT[], %(tokens)s::DOUBLE PRECISION[], %(starts)s::TEXT[]) AS first(is_type, name, fairness_key, tokens, starts)
WHERE NOT (EXISTS (SELECT is_there.name
    FROM rate_state AS is_there
    WHERE is_there.is_type = first.is_type
    AND is_there.name = first.name
    AND is_there.fairness_key = first.fairness_key))
RETURNING rate_state.name
