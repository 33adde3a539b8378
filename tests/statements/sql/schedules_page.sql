SELECT schedule.name, schedule.type_name, schedule.queue, schedule.priority, schedule.max_attempts, schedule.timeout, schedule.rate_weight, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.cron, schedule.time_zone, schedule.missed, schedule.catch_up, schedule.grace, schedule.overlap, schedule.source, schedule.paused_at, schedule.paused_by, schedule.next_fire_at, schedule.last_fire_at, schedule.last_job_id, schedule.error, schedule.created_at, schedule.updated_at, CASE WHEN (schedule.next_fire_at < clock_timestamp()
  AND schedule.paused_at IS NULL
  AND schedule.error IS NULL) THEN CAST(clock_timestamp() - schedule.next_fire_at AS INTERVAL) END AS overdue
FROM schedule
WHERE %(names)s::TEXT[] IS NULL OR schedule.name = ANY (%(names)s::TEXT[])
ORDER BY schedule.name
LIMIT %(limit)s::INTEGER
