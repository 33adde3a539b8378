SELECT dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint AS fingerprint, min(CAST(dead_letter.error ->> %(error_1)s::TEXT AS VARCHAR)) AS error_type, count(*) AS count, min(dead_letter.died_at) AS first_died_at, max(dead_letter.died_at) AS last_died_at, (array_agg(dead_letter.job_id))[%(array_agg_1)s::INTEGER] AS example_job_id
FROM dead_letter
WHERE dead_letter.type_name IN (__[POSTCOMPILE_type_name_1])
GROUP BY dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint
ORDER BY count(*) DESC, dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint
