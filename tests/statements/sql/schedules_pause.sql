UPDATE schedule
SET paused_at=now(), paused_by=%(by)s::VARCHAR
WHERE schedule.name = ANY (%(names)s::TEXT[])
AND schedule.paused_at IS NULL
