SELECT schedule.name
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.name != ALL (%(excluded)s::TEXT[])
AND (schedule.next_fire_at IS NULL OR schedule.next_fire_at <= now())
ORDER BY schedule.next_fire_at, schedule.name
LIMIT %(limit)s::INTEGER
