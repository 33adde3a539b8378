SELECT dead_letter.id
FROM dead_letter
WHERE dead_letter.resolution IS NULL
AND dead_letter.type_name IN (__[POSTCOMPILE_type_name_1])
AND dead_letter.resolution IS NULL
AND dead_letter.id > %(id_1)s::UUID
ORDER BY dead_letter.id
LIMIT %(param_1)s::INTEGER
FOR UPDATE
