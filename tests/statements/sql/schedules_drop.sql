DELETE
FROM schedule
WHERE schedule.name = ANY (%(names)s::TEXT[])
