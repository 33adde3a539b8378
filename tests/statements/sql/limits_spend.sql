WITH before AS (DELETE
  FROM rate_state
  WHERE rate_state.ctid = ANY (array((SELECT (SELECT old.ctid
          FROM rate_state AS "old"
          WHERE "old".is_type = spent.is_type
          AND "old".name = spent.name
          AND "old".fairness_key = spent.fairness_key
          AND "old".version = spent.version) AS anon_1
        FROM unnest(%(is_types)s::BOOLEAN[], %(names)s::TEXT[], %(fairness_keys)s::TEXT[], %(versions)s::BIGINT[], %(tokens)s::DOUBLE PRECISION[]) AS spent(is_type, name, fairness_key, version, tokens)))))
INSERT INTO rate_state (is_type, name, fairness_key, version, tokens, spent_at)
SELECT spent.is_type, spent.name, spent.fairness_key, coalesce(spent.version, 0) + 1 AS anon_2, spent.tokens, now() AS now_1
FROM unnest(%(is_types)s::BOOLEAN[], %(names)s::TEXT[], %(fairness_keys)s::TEXT[], %(versions)s::BIGINT[], %(tokens)s::DOUBLE PRECISION[]) AS spent(is_type, name, fairness_key, version, tokens)
WHERE (SELECT newer.version
  FROM rate_state AS newer
  WHERE newer.is_type = spent.is_type
  AND newer.name = spent.name
  AND newer.fairness_key = spent.fairness_key
  AND newer.version > coalesce(spent.version, 0)
  LIMIT 1) IS NULL
RETURNING rate_state.name
