INSERT INTO schedule (name, type_name, queue, fairness_key, priority, input, input_version, fire_time_field, max_attempts, timeout, rate_cost, cron, time_zone, misfire_policy, catch_up, grace, overlap, next_fire_at, source)
VALUES (%(name)s::VARCHAR, %(type_name)s::VARCHAR, %(queue)s::VARCHAR, %(fairness_key)s::VARCHAR, %(priority)s::SMALLINT, %(input)s::JSONB, %(input_version)s::INTEGER, %(fire_time_field)s::VARCHAR, %(max_attempts)s::INTEGER, %(timeout)s::INTERVAL, %(rate_cost)s::INTEGER, %(cron)s::VARCHAR, %(time_zone)s::VARCHAR, %(misfire_policy)s::VARCHAR, %(catch_up)s::INTEGER, %(grace)s::INTERVAL, %(overlap)s, %(next_fire_at)s::TIMESTAMP WITH TIME ZONE, %(source)s::VARCHAR)
ON CONFLICT (name) DO
UPDATE
SET type_name = excluded.type_name, queue = excluded.queue, fairness_key = excluded.fairness_key, priority = excluded.priority, input = excluded.input, input_version = excluded.input_version, fire_time_field = excluded.fire_time_field, max_attempts = excluded.max_attempts, timeout = excluded.timeout, rate_cost = excluded.rate_cost, cron = excluded.cron, time_zone = excluded.time_zone, misfire_policy = excluded.misfire_policy, catch_up = excluded.catch_up, grace = excluded.grace, overlap = excluded.overlap, next_fire_at = CASE WHEN ((schedule.cron, schedule.time_zone) = (excluded.cron, excluded.time_zone)) THEN coalesce(schedule.next_fire_at, excluded.next_fire_at) ELSE excluded.next_fire_at END, error = NULL, source = excluded.source, updated_at = now()
WHERE schedule.error IS NOT NULL OR schedule.source IS DISTINCT
FROM excluded.source OR schedule.type_name IS DISTINCT
FROM excluded.type_name OR schedule.queue IS DISTINCT
FROM excluded.queue OR schedule.fairness_key IS DISTINCT
FROM excluded.fairness_key OR schedule.priority IS DISTINCT
FROM excluded.priority OR schedule.max_attempts IS DISTINCT
FROM excluded.max_attempts OR schedule.timeout IS DISTINCT
FROM excluded.timeout OR schedule.rate_cost IS DISTINCT
FROM excluded.rate_cost OR schedule.input IS DISTINCT
FROM excluded.input OR schedule.input_version IS DISTINCT
FROM excluded.input_version OR schedule.fire_time_field IS DISTINCT
FROM excluded.fire_time_field OR schedule.cron IS DISTINCT
FROM excluded.cron OR schedule.time_zone IS DISTINCT
FROM excluded.time_zone OR schedule.misfire_policy IS DISTINCT
FROM excluded.misfire_policy OR schedule.catch_up IS DISTINCT
FROM excluded.catch_up OR schedule.grace IS DISTINCT
FROM excluded.grace OR schedule.overlap IS DISTINCT
FROM excluded.overlap
RETURNING schedule.name, schedule.created_at = schedule.updated_at AS is_new
