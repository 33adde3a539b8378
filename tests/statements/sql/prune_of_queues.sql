SELECT queue.name, CASE WHEN (queue.retain_completed IS NOT NULL) THEN least(greatest(queue.retain_completed, interval '0'), interval '36500 days') END AS completed, CASE WHEN (queue.retain_cancelled IS NOT NULL) THEN least(greatest(queue.retain_cancelled, interval '0'), interval '36500 days') END AS cancelled, CASE WHEN (queue.retain_dead IS NOT NULL) THEN least(greatest(queue.retain_dead, interval '0'), interval '36500 days') END AS dead
FROM queue
WHERE queue.fairness_key = ''
AND coalesce(queue.retain_completed, queue.retain_cancelled, queue.retain_dead) IS NOT NULL
