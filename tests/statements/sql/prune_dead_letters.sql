WITH page AS (SELECT dead_letter.id AS id, dead_letter.job_id AS job_id, dead_letter.type_name AS type_name, dead_letter.queue AS queue, dead_letter.died_at AS died_at, dead_letter.resolved_at AS resolved_at
  FROM dead_letter
  WHERE dead_letter.id > %(after)s::UUID
  ORDER BY dead_letter.id
  LIMIT %(scan)s::INTEGER), chosen AS (SELECT dead_letter.id AS id
  FROM dead_letter
  WHERE dead_letter.id = ANY (array((SELECT page.id
        FROM page
        WHERE page.resolved_at < now() - coalesce((%(types_dead_letters)s::INTERVAL[])[array_position(%(types)s::TEXT[], page.type_name)], (%(queues_dead_letters)s::INTERVAL[])[array_position(%(queues)s::TEXT[], page.queue)], %(default_dead_letters)s::INTERVAL)
        AND (SELECT CAST(job.status AS TEXT) = 'dead' AS anon_1
          FROM job
          WHERE job.id = page.job_id) IS NOT true
        AND page.id != ALL (%(excluded)s::UUID[]))))
  FOR UPDATE SKIP LOCKED), deleted AS (DELETE
  FROM dead_letter
  WHERE dead_letter.id = ANY (array((SELECT chosen.id
        FROM chosen)))
  RETURNING dead_letter.id)
SELECT count(*) AS scanned, (SELECT page.id
  FROM page
  ORDER BY page.id DESC
  LIMIT 1) AS last_id, bool_and(page.died_at >= now() - %(shortest)s::INTERVAL) AS is_young, (SELECT count(*) AS count_1
  FROM deleted) AS deleted
FROM page
