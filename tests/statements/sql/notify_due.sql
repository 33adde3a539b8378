SELECT pg_notify(%(pg_notify_2)s::VARCHAR, %(queue)s::VARCHAR) AS pg_notify_1
