SELECT holder.pid, holder.application_name, holder."user", holder.state, holder.open_for, holder.prepared
FROM (SELECT CAST(pg_catalog.pg_stat_activity.pid AS INTEGER) AS pid, CAST(pg_catalog.pg_stat_activity.application_name AS TEXT) AS application_name, CAST(pg_catalog.pg_stat_activity.usename AS TEXT) AS "user", CAST(pg_catalog.pg_stat_activity.state AS TEXT) AS state, CAST(clock_timestamp() - pg_catalog.pg_stat_activity.xact_start AS INTERVAL) AS open_for, CAST(NULL AS TEXT) AS prepared
  FROM pg_catalog.pg_stat_activity
  WHERE pg_catalog.pg_stat_activity.backend_xid = CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)
  UNION ALL
  SELECT CAST(NULL AS INTEGER) AS anon_1, CAST(NULL AS TEXT) AS anon__1, CAST(pg_catalog.pg_prepared_xacts.owner AS TEXT) AS owner, CAST(%(param_1)s::VARCHAR AS TEXT) AS anon_2, CAST(clock_timestamp() - pg_catalog.pg_prepared_xacts.prepared AS INTERVAL) AS anon_3, CAST(pg_catalog.pg_prepared_xacts.gid AS TEXT) AS gid
  FROM pg_catalog.pg_prepared_xacts
  WHERE pg_catalog.pg_prepared_xacts.transaction = CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)) AS holder
