SELECT CAST(job_blocker.job_id AS TEXT) AS job_id, CAST(job_blocker.blocked_by_chain_id AS TEXT) AS blocked_by_chain_id, job_blocker.index AS index, job_blocker.is_resolved AS is_resolved, CAST(job_blocker.on_failure AS TEXT) AS on_failure
FROM job_blocker
