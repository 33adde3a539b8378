UPDATE schedule
SET next_fire_at=%(next)s::TIMESTAMP WITH TIME ZONE
WHERE schedule.name = %(schedule)s::VARCHAR
AND CASE WHEN (schedule.next_fire_at < '1900-01-01 00:00:00+00'::timestamptz) THEN '1900-01-01 00:00:00+00'::timestamptz WHEN (schedule.next_fire_at > '9000-01-01 00:00:00+00'::timestamptz) THEN '9000-01-01 00:00:00+00'::timestamptz ELSE schedule.next_fire_at END = %(was)s::TIMESTAMP WITH TIME ZONE
