INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved, on_failure, trace_context)
SELECT given.job_id, given.chain_id, given.place, given.is_resolved, given.policy, given.trace
FROM unnest(%(job_ids)s::UUID[], %(chain_ids)s::UUID[], %(indexes)s::INTEGER[], %(resolved)s::BOOLEAN[], %(policies)s::TEXT[], %(traces)s::TEXT[]) AS given(job_id, chain_id, place, is_resolved, policy, trace)
