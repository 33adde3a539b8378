SELECT progress.phase, progress.done, progress.total
FROM (SELECT CAST(pg_catalog.pg_stat_progress_vacuum.phase AS TEXT) AS phase, CAST(pg_catalog.pg_stat_progress_vacuum.heap_blks_scanned AS BIGINT) AS done, CAST(pg_catalog.pg_stat_progress_vacuum.heap_blks_total AS BIGINT) AS total
  FROM pg_catalog.pg_stat_progress_vacuum
  WHERE pg_catalog.pg_stat_progress_vacuum.pid = %(pid)s::INTEGER
  UNION ALL
  SELECT CAST(pg_catalog.pg_stat_progress_create_index.phase AS TEXT) AS phase, CAST(pg_catalog.pg_stat_progress_create_index.blocks_done AS BIGINT) AS blocks_done, CAST(pg_catalog.pg_stat_progress_create_index.blocks_total AS BIGINT) AS blocks_total
  FROM pg_catalog.pg_stat_progress_create_index
  WHERE pg_catalog.pg_stat_progress_create_index.pid = %(pid)s::INTEGER) AS progress
