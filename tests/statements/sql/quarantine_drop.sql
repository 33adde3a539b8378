DELETE
FROM quarantine
WHERE quarantine.subject = ANY (%(subjects)s::TEXT[])
AND quarantine.statement = %(statement)s::VARCHAR
