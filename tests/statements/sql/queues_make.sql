INSERT INTO queue (name)
SELECT name
FROM unnest(%(names)s::TEXT[]) AS name
ORDER BY name
ON CONFLICT DO NOTHING
