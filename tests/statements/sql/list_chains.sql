SELECT page.id, page.place, page.fits, job_chain.id AS id_1, job_chain.queue, job_chain.type_name, job_chain.input, job_chain.input_version, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, job_chain.deduplication_key, job_chain.fairness_key
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job.id AS id, row_number() OVER (ORDER BY job.id DESC) AS place, job.root_id IS NULL
    AND job.type_name IN (__[POSTCOMPILE_type_name_1])
    AND job.queue IN (__[POSTCOMPILE_queue_1])
    AND job.created_at >= %(created_at_1)s::TIMESTAMP WITH TIME ZONE
    AND CASE WHEN (job.chain_completed_at IS NOT NULL) THEN coalesce(job.chain_status, job.status) WHEN (job.status != 'completed') THEN job.status ELSE coalesce((SELECT later.status
        FROM job AS later
        WHERE later.root_id = job.id
        ORDER BY later.chain_index DESC
        LIMIT %(param_1)s::INTEGER), job.status) END IN ('dead')
    AND (SELECT 1
      FROM job_blocker
      WHERE job_blocker.blocked_by_chain_id = job.id
      LIMIT %(param_2)s::INTEGER) IS NULL AS fits
    FROM job
    WHERE job.id < %(id_2)s::UUID
    ORDER BY job.id DESC
    LIMIT %(param_3)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_4)s::INTEGER) AS page
LEFT OUTER JOIN job_chain ON job_chain.id = page.id
AND page.fits
ORDER BY page.id DESC
