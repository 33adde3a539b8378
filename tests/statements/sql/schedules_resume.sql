UPDATE schedule
SET paused_at=NULL, paused_by=NULL, next_fire_at=%(next)s::TIMESTAMP WITH TIME ZONE
WHERE schedule.name = %(schedule)s::VARCHAR
