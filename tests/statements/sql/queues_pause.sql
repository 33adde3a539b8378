INSERT INTO queue (name, fairness_key, paused_at, paused_by)
SELECT name, %(of_key)s::VARCHAR AS anon_1, now() AS now_1, %(by)s::VARCHAR AS anon_2
FROM unnest(%(names)s::TEXT[]) AS name
ORDER BY name
ON CONFLICT (name, fairness_key) DO
UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, updated_at = now()
WHERE queue.paused_at IS NULL
RETURNING queue.name AS name
