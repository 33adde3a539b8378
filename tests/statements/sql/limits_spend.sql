UPDATE rate_state
SET version=(least(rate_state.version, 9223372036854775807 - 1) + 1), tokens=((%(tokens)s::DOUBLE PRECISION[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]), starts=CAST((%(starts)s::TEXT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)] AS BIGINT[]), spent_at=now()
WHERE rate_state.ctid = ANY (CAST(%(places)s::TEXT[] AS tid[]))
AND rate_state.is_type = (%(is_types)s::BOOLEAN[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
AND rate_state.name = (%(names)s::TEXT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
AND rate_state.fairness_key = (%(fairness_keys)s::TEXT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
AND rate_state.version = (%(versions)s::BIGINT[])[array_position(CAST(%(places)s::TEXT[] AS tid[]), rate_state.ctid)]
RETURNING rate_state.name
