SELECT CAST(EXTRACT(epoch
    FROM min(coalesce(schedule.next_fire_at, now())) - clock_timestamp()) AS DOUBLE PRECISION) AS anon_1
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
