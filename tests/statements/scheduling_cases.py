"""The statements that decide what runs next, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import arrivals, claims, expiry, limits
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY
from sa_jobqueue.worker.claim.cursors import START, Cursors, Lane, Plan, Segment
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import BATCH, NOBODY, Case, World


def many(world: World) -> dict[str, Any]:
    """Give the parameters of a claim with late arrivals, two partitions by type, and fairness keys."""
    cursors = Cursors(["mail"], NOBODY)

    def segment(queue: str, key: str, type_name: str, quota: int) -> Segment:
        lanes = [Lane(queue, key, priority, type_name) for priority in range(MAX_PRIORITY, MIN_PRIORITY - 1, -1)]
        for lane in lanes:
            cursors.lower(lane, START)
        return Segment(lanes, quota, [type_name or "test"])

    shared = [segment(queue, key, "", BATCH // 4) for queue in ("default", "other") for key in ("", "1")]
    segments = [segment("default", "", "mail", BATCH // 4), *shared]
    plan = Plan(segments, dict.fromkeys(world.pending[: BATCH // 4], "3"), BATCH)
    return cursors.parameters(plan, world.pending[-1:]) | {"worker_id": WORKER, "grace": timedelta(seconds=15)}


def arrivals_of(world: World) -> dict[str, Any]:
    """Give the parameters of a catch-up since a snapshot that lies behind everything."""
    of_lanes: dict[str, Any] = {
        f"{kind}_{name}": values
        for kind in ("known", "ended")
        for name, values in {
            "queues": ["default", "other"] * 2,
            "fairness_keys": ["", "", "1", "1"],
            "priorities": [0, 0, 5, 5],
            "types": ["", "mail"] * 2,
        }.items()
    }
    known_lanes = {"known_at": [world.now] * 4, "known_id": [NOBODY] * 4}
    parameters = {"queues": ["default"], "types": ["test", "mail"], "shared_types": ["test"], "read_to": world.now}
    parameters |= {"paused_keys": ["other\x1f1"], "most_read": 10 * BATCH}
    return of_lanes | known_lanes | parameters | {"xmax": "3", "xip": ["3"], "most": BATCH}


_ONE = {"queue": "default", "fairness_keys": ["", "1"], "type_name": "test", "since": "0"}
_SPENT = {
    "is_types": [False, True],
    "names": ["default", "test"],
    "fairness_keys": ["1", ""],
    "versions": [None, 7],
    "tokens": [2.5, None],
}
_CLAIM = frozenset({"ix_job_claim", "pk_job", "ix_job_ordering", "uq_job_ordering"})

_FIRST = {"after_queue": "", "after_fairness_key": "", "after_priority": -1000}
_FULL_SCAN = _FIRST | {"served_queues": ["default", "other"], "most": BATCH}

SCHEDULING_CASES = [
    Case("full_scan", lambda: arrivals.full_scan(Job), frozenset({"ix_job_claim"}), lambda w: _FULL_SCAN),
    Case(
        "catch_up",
        lambda: arrivals.catch_up(Job),
        frozenset({"ix_job_changed", "ix_job_claim", "ix_job_ordering", "ix_job_ordering_freed", "pk_job"}),
        arrivals_of,
        examines=BATCH,
    ),
    Case("candidates", lambda: claims.candidates(Job, inputs=True), _CLAIM, many),
    Case(
        "expire_only",
        lambda: expiry.expire(Job, only=True),
        frozenset({"ix_job_expiring", "pk_job"}),
        lambda w: {"limit": BATCH, "ids": list(w.pending[:BATCH]), "excluded": list(w.pending[:1])},
    ),
    Case("late", lambda: expiry.late(Job), frozenset({"ix_job_expiring"}), lambda w: {"limit": BATCH}),
    Case("expire", lambda: expiry.expire(Job), frozenset({"ix_job_expiring", "pk_job"}), lambda w: {"limit": BATCH}),
    Case("limits_lock", lambda: limits.lock(Job), frozenset(), lambda w: _ONE),
    Case("limits_running", lambda: limits.running(Job), frozenset({"ix_job_running"}), lambda w: _ONE, examines=2000),
    Case("limits_spend", lambda: limits.spend(Job), frozenset(), lambda w: _SPENT),
    Case(
        "limits_running_by_part",
        lambda: limits.running_by_fairness_key(Job),
        frozenset({"ix_job_running"}),
        lambda w: _ONE,
        examines=2000,
    ),
]
