INSERT INTO queue (name, fairness_key)
SELECT name, %(of_key)s::VARCHAR AS anon_1
FROM unnest(%(names)s::TEXT[]) AS name
ORDER BY name
ON CONFLICT DO NOTHING
