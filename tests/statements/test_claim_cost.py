"""Reads of a claim and a catch-up while a transaction keeps vacuum from removing finished jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Integer, bindparam, literal_column, select

from sa_jobqueue import Job
from sa_jobqueue.statements import arrivals, claims
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import WORKER
from tests.fixtures.plans import Plan, Prepared, connect
from tests.statements.cases import catch_up_parameters, claim_parameters
from tests.statements.shapes import NOBODY

pytestmark = [pytest.mark.slow, own_database]

DEAD = 20_000
MARGIN = 1.5
MOST = 60

_ENQUEUE = """
INSERT INTO job (id, chain_id, type_name, chain_type_name, scheduled_at)
SELECT id, id, 'test', 'test', clock_timestamp() FROM (SELECT job_uuid7() AS id FROM generate_series(1, %s)) AS made
"""
_RUN = """
UPDATE job SET status = 'running', leased_by = 'somebody' WHERE status = 'pending';
UPDATE job SET status = 'completed', leased_by = NULL, completed_at = now() WHERE status = 'running';
"""


class Worker:
    """A worker that has just caught up, as it goes on: each statement begins where the one before it ended."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._claim = Prepared(server, "claim", claims.claim(Job))
        self._catch_up = Prepared(server, "catch_up", arrivals.catch_up(Job))
        self._at, self._xmax = self._here()

    def claim(self) -> Plan:
        """Claim one job, and move the cursors to where it looked."""
        at, _ = self._here()
        lane: dict[str, Any] = {"queues": ["default"], "fairness_keys": [""], "priorities": [0], "segment_last": [1]}
        cursor: dict[str, Any] = {"cursor_at": [self._at], "cursor_id": [NOBODY]}
        plan = self._claim.explain(claim_parameters(limit=1, **lane, **cursor))
        self._at = at
        return plan

    def catch_up(self) -> Plan:
        """Ask what came since."""
        _, xmax = self._here()
        plan = self._catch_up.explain(catch_up_parameters(self._xmax))
        self._xmax = xmax
        return plan

    def _here(self) -> tuple[datetime, str]:
        now, xmax = self._server.execute("SELECT now(), pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        return now, xmax


def without(server: Any) -> Callable[[], Plan]:
    """Return the claim that every other queue makes, with the same index and the same guards."""
    oldest = (
        select(Job.id)
        .where(literal_column("status = 'pending' AND priority >= '-9'"), Job.queue == "default", Job.priority == 0)
        .order_by(Job.scheduled_at, Job.id)
        .limit(bindparam("limit", type_=Integer))
        .with_for_update(skip_locked=True)
    )
    prepared = Prepared(server, "without", oldest)
    return lambda: prepared.explain({"limit": 1, "worker_id": WORKER})


@both_servers
def test_claim_cost_stays_flat_with_dead_tuples_under_a_held_back_horizon(server: Any, database_url: str) -> None:
    worker, plain = Worker(server), without(server)
    server.execute(_ENQUEUE, [5])
    at_rest, asked_at_rest, plain_at_rest = worker.claim(), worker.catch_up(), plain()
    assert at_rest.rows == 1
    with connect(database_url) as pin:
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM pg_class")
        for _ in range(4):
            server.execute(_ENQUEUE, [DEAD // 4])
            server.execute(_RUN)
            worker.claim()
            worker.catch_up()
        server.execute("VACUUM job")
        server.execute(_ENQUEUE, [5])
        pinned, asked_pinned, plain_pinned = worker.claim(), worker.catch_up(), plain()
    assert pinned.rows == 1
    assert asked_pinned.buffers <= MARGIN * asked_at_rest.buffers + MOST / 10, asked_pinned.shape
    assert pinned.buffers <= MARGIN * at_rest.buffers, pinned.shape
    assert pinned.buffers < MOST, pinned.shape
    # The plain claim shows that the horizon was held back at all.
    assert plain_pinned.buffers > 50 * plain_at_rest.buffers
    assert plain_pinned.buffers > 20 * pinned.buffers


_ENDED = """
INSERT INTO job (id, chain_id, type_name, chain_type_name, ordering_key)
SELECT id, id, 'test', 'test', 'key ' || n % 100 FROM (SELECT job_uuid7() AS id, n FROM generate_series(1, %s) AS n) AS made;
UPDATE job SET status = 'completed', completed_at = now() WHERE status = 'pending';
"""


@both_servers
@pytest.mark.parametrize("known_lanes", ["analysed", "never analysed", "analysed when empty"])
def test_ordering_key_catch_up_reads_only_recently_ended_jobs(server: Any, known_lanes: str) -> None:
    if known_lanes == "analysed when empty":
        server.execute("ANALYZE job")
    worker = Worker(server)
    server.execute(_ENDED.replace("%s", str(DEAD)))
    if known_lanes == "analysed":
        server.execute("ANALYZE job")
    worker.catch_up()
    quiet = worker.catch_up()
    assert "ix_job_ordering_freed" in quiet.scans("job"), quiet.shape
    assert quiet.buffers < MOST, quiet.shape
    server.execute(_ENDED.replace("%s", "5"))
    assert 5 < worker.catch_up().buffers - quiet.buffers < 5 * MOST
