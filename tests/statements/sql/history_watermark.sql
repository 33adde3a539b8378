SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) AS xid, CAST(anon_1.system_identifier AS TEXT) AS system
FROM pg_control_system() AS anon_1
