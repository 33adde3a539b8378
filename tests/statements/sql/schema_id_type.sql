SELECT format_type(pg_catalog.pg_attribute.atttypid, NULL) AS format_type_1
FROM pg_catalog.pg_attribute
WHERE pg_catalog.pg_attribute.attrelid = to_regclass(%(param_1)s::VARCHAR)
AND pg_catalog.pg_attribute.attname = %(param_2)s::VARCHAR
