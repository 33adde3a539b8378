"""The statements that decide what runs next, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import choosing, claims, expiry, limits, parts
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY
from sa_jobqueue.worker.claim.floors import Floors, Lane, most_behind
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.planning import Share
from sa_jobqueue.worker.claim.turns import Turn, together
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import BATCH, NOBODY, Case, World

QUEUES = ("default", "other")


def shared(world: World, *, looked: bool) -> dict[str, Any]:
    """Give the parameters of a claim that shares; of a worker that has `looked` before, or of one that begins."""
    priorities = range(MAX_PRIORITY, MIN_PRIORITY - 1, -1)
    floors = Floors([Lane(queue, priority) for priority in priorities for queue in QUEUES], NOBODY)
    if looked:
        # As after a first claim whose snapshot lies behind everything: the whole backlog is to be found behind the floors.
        floors.advance(
            [], limit=1, changed=True, database_now=world.now, snapshot=("3", ["3"]), started=0.0, now=0.0, reading=None
        )
    reading = floors.blocks([Share("other", BATCH // 4), Share("default", BATCH)])
    return floors.parameters(changed=True, reading=reading) | {
        "types": ["test", "mail"],
        "limit": BATCH,
        "most_behind": most_behind(BATCH),
        "worker_id": WORKER,
        "grace": timedelta(seconds=15),
    }


def from_lanes(world: World) -> dict[str, Any]:
    """Give the parameters of a claim from the lanes of two queues that have most jobs."""
    lanes = [Lane(queue, 0) for queue in QUEUES]
    floors = Floors(lanes, NOBODY)
    reading = floors.blocks([Share("other", BATCH // 4), Share("default", BATCH)], 0.0, BATCH)
    assert reading.is_flat
    more = {"types": ["test", "mail"], "limit": BATCH, "worker_id": WORKER, "grace": timedelta(seconds=15)}
    return floors.parameters(changed=False, reading=reading) | more


def of_groups(world: World, *, looked: bool) -> dict[str, Any]:
    """Give the parameters of a claim for two groups of one queue, by type."""
    turns = []
    for kind in ("test", "mail"):
        group = Group(["default"], [kind], NOBODY, room=None, limits=None, fair=True)
        if looked:  # as `shared`
            group.floors.advance(
                [], limit=1, changed=True, database_now=world.now, snapshot=("3", ["3"]), started=0.0, now=0.0, reading=None
            )
        turns.append(Turn(group, BATCH // 2, group.floors.whole(BATCH // 2), behind=True))
    return together(turns) | {"limit": BATCH, "worker_id": WORKER, "grace": timedelta(seconds=15)}


def offered(world: World) -> dict[str, Any]:
    """Give the parameters of a claim that offers some jobs again, and others of the same queues."""
    return shared(world, looked=True) | {"of_queue": "default", "held": list(world.pending[:BATCH])}


_ONE = {"queue": "default", "fairness_keys": ["", "1"], "type_name": "test", "since": "0"}
_SPENT = {
    "is_types": [False, True],
    "names": ["default", "test"],
    "fairness_keys": ["1", ""],
    "versions": [1, 7],
    "places": ["(0,1)", "(3,9)"],
    "tokens": [2.5, None],
    "starts": [None, "{1,2}"],
}
_CLAIM = frozenset({"ix_job_claim", "pk_job", "ix_job_ordering", "uq_job_ordering"})

_SURVEY = {"after_queue": "", "after_fairness_key": "", "after_priority": -1000, "most": BATCH}


def news(world: World) -> dict[str, Any]:
    """Give the parameters of a look at what was written, and behind what was read of four lanes."""
    return {
        "queues": ["default"],
        "xmax": "3",
        "xip": ["3"],
        "most": BATCH,
        "lane_queues": ["default", "other"] * 2,
        "lane_fairness_keys": ["1"] * 4,
        "lane_priorities": [0, 0, 5, 5],
        "read_to": world.now,
        "types": ["test", "mail"],
    }


SCHEDULING_CASES = [
    Case("survey_parts", lambda: parts.survey(Job), frozenset({"ix_job_claim"}), lambda w: _SURVEY),
    Case(
        "news_of_parts",
        lambda: parts.news(Job),
        frozenset({"ix_job_changed", "ix_job_claim", "ix_job_ordering", "ix_job_ordering_freed", "pk_job"}),
        news,
        looks_at=BATCH,
    ),
    Case("claim_shared", lambda: claims.claim(Job, changed=False, shared=True), _CLAIM, lambda w: shared(w, looked=False)),
    Case(
        "claim_shared_changed",
        lambda: claims.claim(Job, changed=True, shared=True),
        _CLAIM | {"ix_job_changed", "ix_job_ordering_freed"},
        lambda w: shared(w, looked=True),
    ),
    Case("claim_from_lanes", lambda: claims.claim_from_lanes(Job), _CLAIM, from_lanes),
    Case(
        "claim_for_groups",
        lambda: claims.claim_for_groups(Job, changed=False),
        _CLAIM,
        lambda w: of_groups(w, looked=False),
    ),
    Case(
        "claim_for_groups_changed",
        lambda: claims.claim_for_groups(Job, changed=True),
        _CLAIM | {"ix_job_changed", "ix_job_ordering_freed"},
        lambda w: of_groups(w, looked=True),
    ),
    Case(
        "claim_for_groups_excluding",
        lambda: claims.claim_for_groups(Job, changed=True, excluding=True),
        _CLAIM | {"ix_job_changed", "ix_job_ordering_freed"},
        lambda w: of_groups(w, looked=True) | {"excluded": list(w.pending[:BATCH])},
    ),
    Case("startable", lambda: claims.startable(Job), _CLAIM - {"pk_job"}, from_lanes),
    Case(
        "claim_by_id",
        lambda: claims.claim_by_id(Job),
        frozenset({"pk_job"}),
        lambda w: {"ids": list(w.pending[:BATCH]), "worker_id": WORKER, "grace": timedelta(seconds=15)},
    ),
    Case(
        "choosing_candidates",
        lambda: choosing.candidates(Job, inputs=True),
        _CLAIM | {"ix_job_changed", "ix_job_ordering_freed"},
        offered,
    ),
    Case("choosing_candidates_bare", lambda: choosing.candidates(Job, inputs=False), frozenset(), offered, looks_at=BATCH),
    Case(
        "choosing_claim",
        lambda: choosing.claim(Job),
        frozenset({"pk_job", "ix_job_ordering", "uq_job_ordering"}),
        lambda w: shared(w, looked=False) | {"ids": list(w.pending), "of_queue": "default"},
    ),
    Case(
        "longest_waiting",
        lambda: claims.longest_waiting(Job),
        frozenset({"ix_job_claim", "ix_job_ordering", "uq_job_ordering"}),
        lambda w: shared(w, looked=False),
    ),
    Case(
        "expire_only",
        lambda: expiry.expire(Job, only=True),
        frozenset({"ix_job_expiring", "pk_job"}),
        lambda w: {"limit": BATCH, "ids": list(w.pending[:BATCH]), "excluded": list(w.pending[:1])},
    ),
    Case("late", lambda: expiry.late(Job), frozenset({"ix_job_expiring"}), lambda w: {"limit": BATCH}),
    Case("expire", lambda: expiry.expire(Job), frozenset({"ix_job_expiring", "pk_job"}), lambda w: {"limit": BATCH}),
    Case("limits_lock", lambda: limits.lock(Job), frozenset(), lambda w: _ONE),
    Case("limits_standing", lambda: limits.standing(Job), frozenset(), lambda w: {"limit": 100}, guarded=False),
    Case("limits_running", lambda: limits.running(Job), frozenset({"ix_job_running"}), lambda w: _ONE, looks_at=2000),
    Case(
        "limits_longest_running",
        lambda: limits.longest_running(Job),
        frozenset({"ix_job_running"}),
        lambda w: {"limit": 100},
        looks_at=2000,
    ),
    Case("limits_spend", lambda: limits.spend(Job), frozenset(), lambda w: _SPENT),
    Case("limits_spend_first", lambda: limits.spend_first(Job), frozenset(), lambda w: _SPENT),
    Case(
        "limits_running_by_part",
        lambda: limits.running_by_part(Job),
        frozenset({"ix_job_running"}),
        lambda w: _ONE,
        looks_at=2000,
    ),
]
