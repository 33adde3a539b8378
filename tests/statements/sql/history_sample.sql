SELECT job_attempt_1.job_id
FROM job_attempt AS job_attempt_1 TABLESAMPLE system(%(param_1)s)
ORDER BY job_attempt_1.job_id
