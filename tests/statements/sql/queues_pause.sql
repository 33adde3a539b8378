INSERT INTO queue (name, paused_at, paused_by)
SELECT name, now() AS now_1, %(by)s::VARCHAR AS anon_1
FROM unnest(%(names)s::TEXT[]) AS name
ORDER BY name
ON CONFLICT (name) DO
UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, updated_at = now()
WHERE queue.paused_at IS NULL
RETURNING queue.name AS name
