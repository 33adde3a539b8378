SELECT count(*) AS count_1
FROM (SELECT 1
  FROM job
  WHERE job.root_id = ANY (%(param_1)s::UUID[])
  LIMIT %(param_2)s::INTEGER) AS "some"
