"""The statements of chains and blockers, in the shape of `cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sa_jobqueue import Job
from sa_jobqueue.ids import uuid7
from sa_jobqueue.statements import blockers, chains, completions
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import BATCH, NOBODY, PK, Case, World, complete_one_parameters

CHAIN = frozenset({"uq_job_chain", "pk_job"})
NEXT = ("id", "chain_id", "chain_index", "type_name", "chain_type_name", "input")
AWAITED = frozenset({"ix_job_has_waiters", "pk_job"})
SEVERAL = 20


def chained(ids: Sequence[UUID], *, continues: bool = False) -> dict[str, Any]:
    """Give the parameters that complete first attempts, each with its root, and with `continues` its continuation."""
    count = len(ids)
    parameters: dict[str, Any] = {
        "ids": list(ids),
        "attempts": [1] * count,
        "outputs": ["null"] * count,
        "locks": [*ids, *ids],
        "worker_id": WORKER,
    }
    if continues:
        parameters |= {
            "outputs": [None] * count,
            "parents": list(ids),
            "next_id": [uuid7() for _ in ids],
            "next_chain_id": list(ids),
            "next_chain_index": [1] * count,
            "next_type_name": ["test"] * count,
            "next_chain_type_name": ["test"] * count,
            "next_input": ["{}"] * count,
            "delays": [None] * count,
            "ats": [None] * count,
        }
    return parameters


def edges(ids: Sequence[UUID]) -> dict[str, Any]:
    """Give the parameters of edges in a row, each job waiting for the next."""
    count = len(ids) - 1
    return {
        "job_ids": list(ids[:-1]),
        "chain_ids": list(ids[1:]),
        "indexes": [0] * count,
        "resolved": [False] * count,
        "policies": ["wait"] * count,
        "traces": [None] * count,
    }


def ended(ids: Sequence[UUID], *, outcome: str = "completed") -> dict[str, Any]:
    """Give the parameters that unblock chains."""
    return {
        "chains": list(ids),
        "outcomes": [outcome] * len(ids),
        "afters": [NOBODY] * len(ids),
        "limit": 200,
        "dead_letter_ids": [uuid7() for _ in range(200)],
    }


def some(world: World) -> dict[str, Any]:
    """Give the ids of many jobs."""
    return {"ids": list(world.running[:BATCH])}


CHAIN_CASES = [
    Case("chain_complete", lambda: chains.complete(Job), PK, lambda world: chained(world.running[:BATCH])),
    Case(
        "chain_complete_going_on",
        lambda: chains.complete(Job, NEXT),
        PK,
        lambda world: chained(world.running[:BATCH], continues=True),
    ),
    Case("chain_lock", lambda: chains.lock(Job), PK, some, guarded=False),
    Case(
        "chain_lock_in_session",
        lambda: chains.lock(Job, in_session=True),
        PK,
        lambda world: some(world) | {"table_oid": world.table_oid},
        guarded=False,
    ),
    Case(
        "chain_end_in_session",
        lambda: chains.end(Job, in_session=True),
        PK,
        lambda world: {"root": world.running[0], "table_oid": world.table_oid},
        guarded=False,
    ),
    Case(
        "complete_one_going_on",
        lambda: completions.complete_one(Job, continues=True),
        PK,
        lambda world: complete_one_parameters(world, None),
        guarded=False,
    ),
    Case(
        "blocker_outcomes",
        lambda: blockers.outcomes(Job),
        CHAIN,
        lambda world: {"job_id": world.waiting[0]},
    ),
    Case(
        "chains_to_unblock",
        lambda: blockers.chains_to_unblock(Job),
        frozenset({"ix_job_has_waiters"}),
        lambda world: {"limit": BATCH},
    ),
    Case("still_to_unblock", lambda: blockers.still_to_unblock(Job), AWAITED, some),
    Case("lock_ended", lambda: blockers.lock_ended(Job), AWAITED, some),
    Case("unblock", lambda: blockers.unblock(Job), PK, lambda world: ended(world.running[:SEVERAL])),
    Case("unblock_failed", lambda: blockers.unblock(Job), PK, lambda world: ended(world.running[:SEVERAL], outcome="dead")),
    Case(
        "unblock_only",
        lambda: blockers.unblock(Job, only=True),
        PK,
        lambda world: ended(world.running[:SEVERAL]) | {"ids": list(world.waiting[:BATCH]), "excluded": [NOBODY]},
    ),
    Case(
        "waiting",
        lambda: blockers.waiting(Job),
        frozenset(),
        lambda world: {"chains": list(world.running[:SEVERAL]), "after": NOBODY, "limit": BATCH},
        examines=BATCH,
    ),
    Case(
        "waiting_among",
        lambda: blockers.waiting_among(Job),
        frozenset({"pk_job_blocker"}),
        lambda world: {"chains": list(world.running[:SEVERAL]), "jobs": list(world.waiting[:BATCH])},
        examines=BATCH,
    ),
    Case("clear_waiters", lambda: blockers.clear_waiters(Job), PK, some),
]
