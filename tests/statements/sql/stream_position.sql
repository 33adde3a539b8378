SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) AS xid, CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) AS next_xid, CAST(anon_1.system_identifier AS TEXT) AS system, pg_is_in_recovery() AS is_replica
FROM pg_control_system() AS anon_1
