"""What a listing reads: a bounded part of the table, whatever its filter leaves, and whatever the statistics say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ChainFilter,
    JobFilter,
    JobStatus,
    list_blocked_jobs,
    list_blockers,
    list_chain_jobs,
    list_chains,
    list_jobs,
)
from tests.fixtures.database import both_servers
from tests.fixtures.plans import Plan

DEAD = JobStatus.DEAD

_MANY = """
INSERT INTO job (id, chain_id, type_name, chain_type_name)
SELECT id, id, 'hay', 'hay' FROM (SELECT job_uuid7() AS id FROM generate_series(1, 60000)) AS made;
INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name)
SELECT job_uuid7(), (SELECT id FROM job ORDER BY id LIMIT 1), n, 'long', 'hay' FROM generate_series(1, 20000) AS n;
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, open)
SELECT id, (SELECT id FROM job ORDER BY id LIMIT 1), 0, false FROM job WHERE root_id IS NULL;
"""


@both_servers
@pytest.mark.parametrize("analysed", [False, True])
def test_no_page_reads_more_than_its_walk(session: Session, engine: Engine, analysed: bool) -> None:
    """In a table of 80,000 jobs with a chain of 20,000 that 60,000 wait for, whatever a filter leaves of them."""
    asked: list[tuple[str, Any]] = []
    with engine.begin() as connection:
        connection.execute(text(_MANY))
        if analysed:
            connection.execute(text("ANALYZE job, job_blocker"))
    root, some = session.scalars(text("SELECT id FROM job ORDER BY id LIMIT 30001")).all()[::30000]
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
    nobody = datetime(1990, 1, 1, tzinfo=UTC)
    for newest_first in (True, False):
        for after in (None, some):
            walk: dict[str, Any] = {"after": after, "newest_first": newest_first, "scan_limit": 500, "limit": 20}
            list_jobs(session, **walk)
            list_jobs(session, where=JobFilter(statuses=[DEAD], created_before=nobody, types=["none"]), **walk)
            list_jobs(session, where=JobFilter(chain_ids=[root]), **walk)
            list_jobs(session, where=JobFilter(ids=[some], chain_ids=[some]), **walk)
            list_chains(session, **walk)
            list_chains(session, where=ChainFilter(statuses=[DEAD], top_level=True, created_before=nobody), **walk)
            list_chains(session, where=ChainFilter(job_ids=[some]), **walk)
            list_blocked_jobs(session, root, **walk)
            list_blocked_jobs(session, root, open_only=True, **walk)
        list_chain_jobs(session, root, newest_first=newest_first, limit=20, after=10_000)
    list_blockers(session, some)
    costs: list[tuple[int, str]] = []
    for statement, parameters in asked.copy():
        told = session.connection().exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
        plan = Plan(told.scalar_one()[0]["Plan"])
        costs.append((plan.buffers, f"{statement}\n{plan.shape}"))
    most, which = max(costs)
    assert most < 500 * 8, which
