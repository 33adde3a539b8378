SELECT CAST(relation.relname AS TEXT) AS name, pg_table_size(relation.oid) AS bytes, pg_indexes_size(relation.oid) AS index_bytes, pg_relation_size(relation.oid) AS heap_bytes, CAST(stats.n_live_tup AS BIGINT) AS live, CAST(stats.n_dead_tup AS BIGINT) AS dead, (SELECT CAST(sum(columns.avg_width * (1 - columns.null_frac)) AS DOUBLE PRECISION) AS sum_1
  FROM pg_catalog.pg_stats AS columns
  WHERE columns.schemaname = space.nspname
  AND columns.tablename = relation.relname
  AND NOT CAST(columns.inherited AS BOOLEAN)) AS row_bytes, CAST(relation.reloptions AS TEXT[]) AS options, CAST(stats.n_tup_ins AS BIGINT) AS inserted, CAST(stats.n_tup_upd AS BIGINT) AS updated, CAST(stats.n_tup_del AS BIGINT) AS deleted, CAST(stats.n_tup_hot_upd AS BIGINT) AS hot_updated, stats.last_vacuum, stats.last_autovacuum, stats.last_autoanalyze, (SELECT CAST(progress.phase AS TEXT) AS phase
  FROM pg_catalog.pg_stat_progress_vacuum AS progress
  WHERE progress.relid = relation.oid
  LIMIT 1) AS vacuuming
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace AS space ON space.oid = relation.relnamespace
JOIN pg_catalog.pg_stat_all_tables AS stats ON stats.relid = relation.oid
WHERE relation.oid = ANY (ARRAY[to_regclass(%(param_1)s::VARCHAR) :: oid, to_regclass(%(param_2)s::VARCHAR) :: oid, to_regclass(%(param_3)s::VARCHAR) :: oid, to_regclass(%(param_4)s::VARCHAR) :: oid, to_regclass(%(param_5)s::VARCHAR) :: oid, to_regclass(%(param_6)s::VARCHAR) :: oid])
ORDER BY relation.relname
