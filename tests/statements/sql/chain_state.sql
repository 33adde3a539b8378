SELECT job_chain.id, job_chain.type_name, job_chain.status, job_chain.output, job_chain.error, job_chain.created_at, job_chain.completed_at, job_chain.length, job_chain.last_job_id, job_chain.last_type_name, root.has_waiters
FROM job_chain
JOIN job AS root ON root.id = job_chain.id
WHERE job_chain.id = (SELECT asked.chain_id
  FROM job AS asked
  WHERE asked.id = %(job_id)s::UUID)
