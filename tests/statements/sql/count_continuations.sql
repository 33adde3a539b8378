SELECT coalesce(sum((SELECT job.chain_index
      FROM job
      WHERE job.root_id = chain.id
      ORDER BY job.chain_index DESC
      LIMIT %(param_1)s::INTEGER)), 0) AS coalesce_1
FROM unnest(%(param_2)s::UUID[]) AS chain(id)
