SELECT schedule.name, schedule.cron, schedule.time_zone, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, now() AS now
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.next_fire_at > now()
