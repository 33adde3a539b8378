SELECT pg_advisory_xact_lock(hashtextextended(named.name, %(hashtextextended_1)s::INTEGER)) AS pg_advisory_xact_lock_1
FROM unnest(%(names)s::TEXT[]) AS named(name)
