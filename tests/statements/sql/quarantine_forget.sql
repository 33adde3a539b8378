DELETE
FROM quarantine
WHERE quarantine.retry_at < now() - %(after)s
