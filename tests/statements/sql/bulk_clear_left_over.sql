DELETE
FROM job_bulk_staging
WHERE job_bulk_staging.staged_at < now() - %(age)s
