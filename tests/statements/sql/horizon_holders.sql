SELECT holder.kind, holder.xmin, holder.age, holder.seconds, holder.pid, holder.name, holder."user", holder.state, holder.query
FROM (SELECT CASE WHEN (EXISTS (SELECT 1
      FROM pg_catalog.pg_stat_replication AS sender
      WHERE sender.pid = session.pid)) THEN 'standby_feedback' ELSE 'session' END AS kind, CAST(CASE WHEN (coalesce(age(session.backend_xid), %(coalesce_1)s::INTEGER) > coalesce(age(session.backend_xmin), %(coalesce_2)s::INTEGER)) THEN session.backend_xid ELSE session.backend_xmin END AS TEXT) AS xmin, greatest(age(session.backend_xid), age(session.backend_xmin)) AS age, CASE WHEN (NOT (EXISTS (SELECT 1
        FROM pg_catalog.pg_stat_replication AS sender
        WHERE sender.pid = session.pid))) THEN CAST(EXTRACT(epoch
      FROM clock_timestamp() - session.xact_start) AS DOUBLE PRECISION) END AS seconds, CAST(session.pid AS INTEGER) AS pid, CAST(session.application_name AS TEXT) AS name, CAST(session.usename AS TEXT) AS "user", CAST(session.state AS TEXT) AS state, CAST(CASE WHEN (NOT (EXISTS (SELECT 1
          FROM pg_catalog.pg_stat_replication AS sender
          WHERE sender.pid = session.pid))) THEN left(session.query, 500) END AS TEXT) AS query
  FROM pg_catalog.pg_stat_activity AS session
  WHERE coalesce(age(session.backend_xid), age(session.backend_xmin)) IS NOT NULL
  AND (session.datid IS NULL OR session.datname = current_database())
  AND session.leader_pid IS NULL
  AND session.pid != pg_backend_pid()
  AND NOT (EXISTS (SELECT 1
      FROM pg_catalog.pg_stat_progress_vacuum AS vacuum
      WHERE vacuum.pid = session.pid))
  UNION ALL
  SELECT 'prepared_transaction' AS kind, CAST(prepared.transaction AS TEXT) AS xmin, age(prepared.transaction) AS age, CAST(EXTRACT(epoch
      FROM clock_timestamp() - prepared.prepared) AS DOUBLE PRECISION) AS seconds, CAST(NULL AS INTEGER) AS pid, CAST(prepared.gid AS TEXT) AS name, CAST(prepared.owner AS TEXT) AS "user", CAST(NULL AS TEXT) AS state, CAST(NULL AS TEXT) AS query
  FROM pg_catalog.pg_prepared_xacts AS prepared
  WHERE prepared.database = current_database()
  UNION ALL
  SELECT 'replication_slot' AS kind, CAST(slot.xmin AS TEXT) AS xmin, age(slot.xmin) AS age, CAST(EXTRACT(epoch
      FROM clock_timestamp() - CAST(to_jsonb(slot) ->> 'inactive_since' AS TIMESTAMP WITH TIME ZONE)) AS DOUBLE PRECISION) AS anon_1, CAST(slot.active_pid AS INTEGER) AS pid, CAST(slot.slot_name AS TEXT) AS name, CAST(NULL AS TEXT) AS "user", CASE WHEN slot.active THEN 'active' ELSE 'inactive' END AS state, CAST(NULL AS TEXT) AS query
  FROM pg_catalog.pg_replication_slots AS slot
  WHERE slot.xmin IS NOT NULL) AS holder
ORDER BY holder.age DESC, holder.xmin, holder.name
LIMIT %(limit)s::INTEGER
