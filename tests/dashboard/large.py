"""A queue of many jobs, for measuring the reads of a page: python -m tests.dashboard.large JOBS fills SA_JOBQUEUE_URL.

Of ten million: 9.9 million ended, 90,000 pending in 15 queues, 10,000 dead with their dead letters, a chain of 5,000 jobs,
1,000 fairness keys. A smaller one has the same shares.
"""

from __future__ import annotations

import os
import sys

from sqlalchemy import Engine, create_engine, text

from sa_jobqueue import Job
from sa_jobqueue.migrations.runner import upgrade

_FILL = """
INSERT INTO job (id, chain_id, type_name, chain_type_name, priority, max_attempts, input_version, queue, fairness_key, input,
                 status, attempt, created_at, scheduled_at, started_at, completed_at, chain_completed_at)
SELECT id, id, 'type' || n % 20, 'type' || n % 20, 0, 20, 1, 'queue' || n % 15,
       CASE WHEN n % 15 = 0 THEN 'key' || n % 1000 ELSE '' END,
       jsonb_build_object('n', n), s.status::job_status, CASE WHEN s.status = 'pending' THEN 0 ELSE 1 END, at, at,
       CASE WHEN s.status <> 'pending' THEN at END, CASE WHEN s.status <> 'pending' THEN at END,
       CASE WHEN s.status <> 'pending' THEN at END
FROM (SELECT job_uuid7() AS id, n, now() - (:jobs - n) * interval '10 ms' AS at FROM generate_series(1, :jobs) AS n) AS one,
     LATERAL (SELECT CASE WHEN n % 1000 = 999 THEN 'dead' WHEN n % 1000 >= 990 THEN 'pending'
                     ELSE 'completed' END AS status) AS s
"""
_DEAD_LETTERS = """
INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, error,
                         error_fingerprint, attempts, died_at)
SELECT job_uuid7(), id, id, queue, fairness_key, type_name, input, 1, 'exhausted',
       '{"type": "ValueError", "message": "wrong"}', 'f' || (input ->> 'n')::int / 1000 % 40, 1, completed_at
FROM job WHERE status = 'dead'
"""
_CHAIN = """
WITH root AS (SELECT job_uuid7() AS id)
INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name, queue, priority, max_attempts, input_version, input,
                 status, attempt, completed_at, chain_completed_at, chain_status)
SELECT CASE WHEN n = 0 THEN root.id ELSE job_uuid7() END, root.id, n, 'step', 'step', 'default', 0, 20, 1, '{}',
       'completed', 1, now(), CASE WHEN n = 0 THEN now() END, CASE WHEN n = 0 THEN 'completed'::job_status END
FROM root, generate_series(0, :length - 1) AS n
"""


def fill(engine: Engine, jobs: int) -> None:
    """Fill an empty queue. Needs a superuser: triggers and foreign keys are off meanwhile."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(_FILL), {"jobs": jobs})
        connection.execute(text(_DEAD_LETTERS))
        connection.execute(text(_CHAIN), {"length": max(jobs // 2000, 10)})


if __name__ == "__main__":
    target = create_engine(os.environ["SA_JOBQUEUE_URL"])
    with target.begin() as preparing:
        upgrade(preparing, Job.__jobqueue__)
    fill(target, int(sys.argv[1]))
