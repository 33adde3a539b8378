SELECT schedule.name, schedule.cron, schedule.time_zone, schedule.type_name, schedule.queue, schedule.fairness_key, schedule.priority, schedule.max_attempts, CASE WHEN (schedule.timeout < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.timeout > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.timeout END AS timeout, schedule.rate_cost, schedule.input, schedule.input_version, schedule.fire_time_field, schedule.misfire_policy, schedule.catch_up, CASE WHEN (schedule.grace < '-36500 days'::interval) THEN '-36500 days'::interval WHEN (schedule.grace > '36500 days'::interval) THEN '36500 days'::interval ELSE schedule.grace END AS grace, schedule.overlap, CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END AS next_fire_at, CASE WHEN (schedule.last_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.last_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.last_fire_at END AS last_fire_at, coalesce((SELECT last_job.chain_completed_at IS NULL AS anon_1
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
