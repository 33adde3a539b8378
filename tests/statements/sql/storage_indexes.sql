SELECT CAST(relation.relname AS TEXT) AS name, CAST(owner.relname AS TEXT) AS table_name, CAST(method.amname AS TEXT) AS kind, pg_relation_size(relation.oid) AS bytes, CAST(relation.reltuples AS DOUBLE PRECISION) AS tuples, (SELECT CAST(sum(columns.avg_width * (1 - columns.null_frac)) AS DOUBLE PRECISION) AS sum_1
  FROM pg_catalog.pg_attribute AS attribute
  JOIN pg_catalog.pg_stats AS columns ON columns.attname = attribute.attname
  WHERE attribute.attrelid = owner.oid
  AND attribute.attnum = ANY (CAST(entry.indkey AS INTEGER[]))
  AND columns.schemaname = space.nspname
  AND columns.tablename = owner.relname
  AND NOT CAST(columns.inherited AS BOOLEAN)) AS key_bytes, CAST(entry.indisvalid AS BOOLEAN) AS is_valid, CAST(relation.reloptions AS TEXT[]) AS options, CAST(stats.idx_scan AS BIGINT) AS scans
FROM pg_catalog.pg_index AS entry
JOIN pg_catalog.pg_class AS relation ON relation.oid = entry.indexrelid
JOIN pg_catalog.pg_class AS owner ON owner.oid = entry.indrelid
JOIN pg_catalog.pg_namespace AS space ON space.oid = owner.relnamespace
JOIN pg_catalog.pg_am AS method ON method.oid = relation.relam
LEFT OUTER JOIN pg_catalog.pg_stat_all_indexes AS stats ON stats.indexrelid = relation.oid
WHERE entry.indrelid = ANY (ARRAY[to_regclass(%(param_1)s::VARCHAR) :: oid, to_regclass(%(param_2)s::VARCHAR) :: oid, to_regclass(%(param_3)s::VARCHAR) :: oid, to_regclass(%(param_4)s::VARCHAR) :: oid, to_regclass(%(param_5)s::VARCHAR) :: oid, to_regclass(%(param_6)s::VARCHAR) :: oid])
ORDER BY relation.relname
