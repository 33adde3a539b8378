SELECT count(*) AS unresolved, count(*) FILTER (WHERE found.died_at > now() - interval '1 hours') AS last_hour, count(*) FILTER (WHERE found.died_at > now() - interval '24 hours') AS last_day, count(*) FILTER (WHERE found.died_at > now() - interval '168 hours') AS last_week, count(*) FILTER (WHERE found.died_at > now() - interval '720 hours') AS last_month, min(found.died_at) AS oldest_at
FROM (SELECT dead_letter.died_at AS died_at
  FROM dead_letter
  WHERE dead_letter.resolution IS NULL
  LIMIT %(limit)s::INTEGER) AS found
