SELECT dead_letter.id, dead_letter.job_id, dead_letter.chain_id, dead_letter.queue, dead_letter.fairness_key, dead_letter.type_name, dead_letter.input, dead_letter.input_version, dead_letter.reason, dead_letter.error, dead_letter.error_fingerprint, dead_letter.attempts, dead_letter.died_at, dead_letter.resolution, dead_letter.resolved_at, dead_letter.resolved_by, dead_letter.changed_xid
FROM dead_letter
WHERE dead_letter.resolution IS NULL
AND dead_letter.id > %(id_1)s::UUID
ORDER BY dead_letter.id ASC
LIMIT %(param_1)s::INTEGER
