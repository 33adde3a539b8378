SELECT CAST(EXTRACT(epoch
    FROM min(coalesce(CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END, now())) - clock_timestamp()) AS DOUBLE PRECISION) AS anon_1
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.name != ALL (%(excluded)s::TEXT[])
