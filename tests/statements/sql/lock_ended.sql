SELECT job.id, coalesce(job.chain_status, job.status) AS coalesce_1
FROM job
WHERE job.id = ANY (%(ids)s::UUID[])
AND job.has_waiters
AND job.chain_completed_at IS NOT NULL
AND current_setting('transaction_isolation') = 'read committed'
ORDER BY job.id
FOR NO KEY UPDATE SKIP LOCKED
