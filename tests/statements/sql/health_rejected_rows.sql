SELECT (SELECT count(*) AS count_1
  FROM (SELECT job_bulk_reject.write_id AS write_id
    FROM job_bulk_reject
    LIMIT %(limit)s::INTEGER) AS kept) AS rejected, (SELECT count(*) AS count_2
  FROM (SELECT job_bulk_reject.write_id AS write_id
    FROM job_bulk_write
    JOIN job_bulk_reject ON job_bulk_reject.write_id = job_bulk_write.write_id
    AND job_bulk_reject.sequence = job_bulk_write.sequence
    WHERE job_bulk_write.written_at > now() - interval '24 hours'
    AND job_bulk_write.rejected > 0
    LIMIT %(limit)s::INTEGER) AS "new") AS last_day
