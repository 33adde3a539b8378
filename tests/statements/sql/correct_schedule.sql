UPDATE schedule
SET next_fire_at=%(next)s::TIMESTAMP WITH TIME ZONE
WHERE schedule.name = %(schedule)s::VARCHAR
AND schedule.next_fire_at = %(was)s::TIMESTAMP WITH TIME ZONE
