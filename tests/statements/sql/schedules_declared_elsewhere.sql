SELECT schedule.name, schedule.type_name
FROM schedule
WHERE schedule.source = %(source_1)s::VARCHAR
AND NOT (schedule.name = ANY (%(names)s::TEXT[]))
ORDER BY schedule.name
