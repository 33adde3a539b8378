"""A listing reads a bounded part of the table, whatever its filter leaves, and whatever the statistics say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, list_jobs
from sa_jobqueue.operations import ChainFilter, JobFilter, list_blocked_jobs, list_blockers, list_chain_jobs, list_chains
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.plans import Plan

pytestmark = [pytest.mark.slow, own_database]

DEAD = JobStatus.DEAD

_MANY = """
SET LOCAL session_replication_role = replica;  -- so that jobs may be made as completed
INSERT INTO job (id, chain_id, type_name, chain_type_name, queue, priority, max_attempts, input_version,
                 status, completed_at)
SELECT id, id, 'hay', 'hay', 'default', 0, 20, 1, 'completed', now()
FROM (SELECT job_uuid7() AS id FROM generate_series(1, 60000)) AS made;
INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name, queue, priority, max_attempts,
                 input_version)
SELECT job_uuid7(), (SELECT id FROM job ORDER BY id LIMIT 1), n, 'long', 'hay', 'default', 0, 20, 1
FROM generate_series(1, 20000) AS n;
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved)
SELECT id, (SELECT id FROM job ORDER BY id LIMIT 1), 0, true FROM job WHERE root_id IS NULL;
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index)
SELECT (SELECT id FROM job ORDER BY id DESC LIMIT 1), id, row_number() OVER ()
FROM (SELECT id FROM job WHERE root_id IS NULL ORDER BY id OFFSET 25000 LIMIT 10000) AS waited;
"""


@both_servers
@pytest.mark.parametrize("analysed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_no_page_reads_more_than_its_scan_limit(session: Session, engine: Engine, analysed: bool) -> None:
    """In 80,000 jobs, with a chain of 20,000 that 60,000 wait for, and a job that waits for 10,000 chains.

    Every chain's status must be looked up: each root has completed, and none of the chains.
    """
    statements: list[tuple[str, Any]] = []
    with engine.begin() as connection:
        connection.execute(text(_MANY))
        if analysed:
            connection.execute(text("ANALYZE job, job_blocker"))
    root, *_, some = session.scalars(text("SELECT id FROM job ORDER BY id LIMIT 30001"))
    last = session.scalars(text("SELECT id FROM job ORDER BY id DESC LIMIT 1")).one()
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
    before_any_job = datetime(1990, 1, 1, tzinfo=UTC)
    for newest_first in (True, False):
        for after in (None, some):
            walk: dict[str, Any] = {"after": after, "newest_first": newest_first, "scan_limit": 500, "limit": 20}
            list_jobs(session, **walk)
            list_jobs(session, where=JobFilter(statuses=[DEAD], created_before=before_any_job, types=["none"]), **walk)
            list_jobs(session, where=JobFilter(chain_ids=[root]), **walk)
            list_jobs(session, where=JobFilter(ids=[some], chain_ids=[some]), **walk)
            list_chains(session, **walk)
            list_chains(session, where=ChainFilter(statuses=[DEAD]), **walk)
            list_chains(session, where=ChainFilter(top_level=True), **walk)
            list_chains(session, where=ChainFilter(job_ids=[some]), **walk)
            list_blocked_jobs(session, root, **walk)
            list_blocked_jobs(session, root, open_only=True, **walk)
        list_chain_jobs(session, root, newest_first=newest_first, limit=20, after=10_000)
    walks = len(statements)
    list_blockers(session, last)
    list_blockers(session, last, after=5000)
    for number, (statement, parameters) in enumerate(statements.copy()):
        explained = session.connection().exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
        plan = Plan(explained.scalar_one()[0]["Plan"])
        assert plan.buffers < 6 * 500, f"{statement}\n{plan.shape}"
        # A row more than the walk shows that it goes on. A job's blockers are all read: their order is no index's.
        most = 501 if number < walks else 10_000
        assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes) <= most, f"{statement}\n{plan.shape}"
