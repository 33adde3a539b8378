SELECT job_notify_due(%(queue)s::VARCHAR) AS job_notify_due_1
