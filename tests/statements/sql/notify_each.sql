SELECT count(pg_notify(%(pg_notify_1)s::VARCHAR, payload)) AS count_1
FROM unnest(%(ids)s::TEXT[]) AS payload
