UPDATE schedule
SET next_fire_at=%(to_next_fire_at)s::TIMESTAMP WITH TIME ZONE, last_fire_at=coalesce(%(to_last_fire_at)s::TIMESTAMP WITH TIME ZONE, schedule.last_fire_at), error=%(to_error)s::VARCHAR, last_job_id=coalesce(%(to_last_job_id)s::UUID, schedule.last_job_id)
WHERE schedule.name = %(schedule)s::VARCHAR
