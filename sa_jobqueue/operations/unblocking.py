"""Unblocking: when a chain ends, update the jobs that wait for it and notify waiting callers.

Done in the transaction that ended a chain, or later: an ended root with `has_waiters` still has work to do. No lock is
waited for here; rows that are locked are skipped, and a worker retries them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import dead_letter_ids, lowest_id
from sa_jobqueue.policies.fairness import queue_key_of
from sa_jobqueue.statements import blockers, notifications
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import JobId, JobStatus

ROUNDS: Final = 10
"""Statements of `BATCH` edges in one transaction; a chain that many wait for takes several transactions."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A blocked job that the end of a chain made pending or dead."""

    job_id: JobId
    status: JobStatus
    queue_key: str
    """Its queue and fairness key as one text."""
    type_name: str
    attempt: int


@dataclass(slots=True)
class Unblocked:
    """Jobs that were unblocked, and the work that is left."""

    moved: list[Moved] = field(default_factory=list)
    finished: list[JobId] = field(default_factory=list)
    """Chains whose waiters were all unblocked."""
    left: dict[JobId, JobId | None] = field(default_factory=dict)
    """Chains to continue with: those with many waiters, with the job after which to continue; those whose waiting jobs
    or roots were locked by another transaction; and those that ended because a job died of its blocker."""
    retained: list[JobId] = field(default_factory=list)
    """Chains that only excluded jobs still wait for."""


def unblock(
    connection: Connection,
    model: type[JobMixin[Any]],
    chains: dict[JobId, JobId | None],
    *,
    excluded: Sequence[JobId] = (),
    only: Sequence[JobId] | None = None,
) -> Unblocked:
    """Update the jobs that wait for ended chains, in the caller's READ COMMITTED transaction; does nothing in any other.

    `chains`: chains that may have ended, each with the job after which to continue, or None. `excluded`: waiting jobs to
    leave unchanged. `only`: change only these jobs, and keep the chains for later.
    Changes: resolves blockers; waiting jobs become pending or dead; the chains' `has_waiters`.
    Locks: the chains' roots and the waiting jobs, until the transaction ends; locked rows are skipped.
    """
    result = Unblocked()
    lowest = lowest_id(model.__jobqueue__)
    outcomes = {row.id: row[1] for row in connection.execute(blockers.lock_ended(model), {"ids": list(chains)})}
    if len(outcomes) < len(chains):
        others = [chain_id for chain_id in chains if chain_id not in outcomes]
        result.left |= dict.fromkeys(connection.scalars(blockers.still_to_unblock(model), {"ids": others}))
    afters = {chain_id: chains[chain_id] or lowest for chain_id in outcomes}
    held: dict[JobId, JobId] = {}  # chains, each with the job after which the first of those held comes
    for _ in range(ROUNDS if afters else 0):
        seen = _unblock_batch(
            connection, model, outcomes=outcomes, afters=afters, held=held, result=result, excluded=excluded, only=only
        )
        if seen < BATCH:
            result.finished = [chain_id for chain_id in afters if chain_id not in held]
            break
    else:
        result.left |= afters
    # Back to the first that was held, not on from the last that was seen: the next call knows of no others.
    result.left |= held
    if only is not None:
        result.left |= chains
        result.finished = []
    elif excluded and result.finished:
        given = {"chains": result.finished, "jobs": list(excluded)}
        result.retained = list(connection.scalars(blockers.waiting_among(model), given))
        result.finished = [chain_id for chain_id in result.finished if chain_id not in result.retained]
    if result.finished:
        connection.execute(blockers.clear_waiters(model), {"ids": result.finished})
    for queue_key in sorted({moved.queue_key for moved in result.moved if moved.status is JobStatus.PENDING}):
        connection.execute(notifications.notify_due(model), {"queue": queue_key})
    return result


def _unblock_batch(
    connection: Connection,
    model: type[JobMixin[Any]],
    *,
    outcomes: dict[JobId, JobStatus],
    afters: dict[JobId, JobId],
    held: dict[JobId, JobId],
    result: Unblocked,
    excluded: Sequence[JobId],
    only: Sequence[JobId] | None,
) -> int:
    before = dict(afters)
    rows = connection.execute(
        blockers.unblock(model, only=only is not None),
        {
            "chains": list(afters),
            "outcomes": [outcomes[chain_id].value for chain_id in afters],
            "afters": list(afters.values()),
            "limit": BATCH,
            "dead_letter_ids": dead_letter_ids(model.__jobqueue__, BATCH),
            "excluded": list(excluded),
        }
        | ({} if only is None else {"ids": list(only)}),
    ).all()
    seen = 0
    for row in rows:
        if row.status is None:
            seen += 1
            afters[row.chain_id] = max(afters[row.chain_id], row.job_id)
            if row.held:
                held.setdefault(row.chain_id, before[row.chain_id])
        else:
            queue_key = queue_key_of(row.queue, row.fairness_key)
            result.moved.append(Moved(row.job_id, JobStatus(row.status), queue_key, row.type_name, row.attempt))
            if row.has_waiters and row.status == JobStatus.DEAD:
                result.left[row.chain_id] = None
    return seen


def unblock_all(connection: Connection, model: type[JobMixin[Any]], chain_ids: Iterable[JobId]) -> None:
    """Unblock all jobs whose rows are not locked; a worker does the rest, and in REPEATABLE READ all of it.

    For operations that end chains in a transaction of the application. Otherwise like `unblock`.
    """
    todo: dict[JobId, JobId | None] = dict.fromkeys(chain_ids)
    seen: set[tuple[JobId, JobId | None]] = set()
    while todo := {chain_id: after for chain_id, after in todo.items() if (chain_id, after) not in seen}:
        seen |= set(todo.items())
        todo = unblock(connection, model, todo).left
