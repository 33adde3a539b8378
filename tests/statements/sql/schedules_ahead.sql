SELECT schedule.name, schedule.cron, schedule.time_zone, schedule.next_fire_at, now() AS now
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.next_fire_at > now()
