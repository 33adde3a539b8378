DELETE
FROM job_stage
WHERE job_stage.staged_at < now() - %(age)s
