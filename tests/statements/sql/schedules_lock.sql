SELECT schedule.name, schedule.type_name, schedule.queue, schedule.priority, schedule.max_attempts, schedule.timeout, schedule.rate_weight, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.cron, schedule.time_zone, schedule.missed, schedule.catch_up, schedule.grace, schedule.overlap, schedule.source, schedule.paused_at, schedule.paused_by, schedule.next_fire_at, schedule.last_fire_at, schedule.last_job_id, schedule.error, now() AS now
FROM schedule
WHERE schedule.name = ANY (%(names)s::TEXT[])
ORDER BY schedule.name
FOR UPDATE
