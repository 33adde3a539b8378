SELECT pg_notify(%(pg_notify_2)s::VARCHAR, '') AS pg_notify_1
