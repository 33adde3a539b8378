SELECT page.id, page.place, page.fits, job_chain.id AS id_1, job_chain.queue, job_chain.type_name, job_chain.input, job_chain.input_version, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, job_chain.deduplication_key, job_chain.fairness_key
FROM (SELECT scanned.id AS id, scanned.place AS place, scanned.fits AS fits
  FROM (SELECT job.id AS id, row_number() OVER (ORDER BY job.id DESC) AS place, job.root_id IS NULL AS fits
    FROM job
    WHERE job.id < %(id_2)s::UUID
    AND job.id = ANY (%(param_1)s::UUID[])
    AND job.id = ANY (array((SELECT member.chain_id
          FROM job AS member
          WHERE member.id = ANY (%(param_2)s::UUID[]))))
    ORDER BY job.id DESC
    LIMIT %(param_3)s::INTEGER) AS scanned
  WHERE scanned.fits OR scanned.place = %(place_1)s::INTEGER
  ORDER BY scanned.id DESC
  LIMIT %(param_4)s::INTEGER) AS page
LEFT OUTER JOIN job_chain ON job_chain.id = page.id
AND page.fits
ORDER BY page.id DESC
