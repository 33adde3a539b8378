SELECT schedule.name, schedule.cron, schedule.time_zone, schedule.type_name, schedule.queue, schedule.fairness_key, schedule.priority, schedule.max_attempts, schedule.timeout, schedule.rate_cost, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.misfire_policy, schedule.catch_up, schedule.grace, schedule.overlap, schedule.next_fire_at, schedule.last_fire_at, coalesce((SELECT last_job.chain_completed_at IS NULL AS anon_1
    FROM job AS last_job
    WHERE last_job.id = schedule.last_job_id), false) AS is_open, coalesce(%(at)s::TIMESTAMP WITH TIME ZONE, now()) AS now
FROM schedule
WHERE schedule.paused_at IS NULL
AND schedule.error IS NULL
AND schedule.name != ALL (%(excluded)s::TEXT[])
AND (schedule.next_fire_at IS NULL OR schedule.next_fire_at <= coalesce(%(at)s::TIMESTAMP WITH TIME ZONE, now()))
AND (%(names)s::TEXT[] IS NULL OR schedule.name = ANY (%(names)s::TEXT[]))
ORDER BY schedule.next_fire_at, schedule.name
LIMIT %(limit)s::INTEGER
FOR UPDATE OF schedule SKIP LOCKED
