"""Blockers: what happens when jobs with blockers are flushed, in any order, and when a chain that jobs wait for ends.

Before the flush, the chains they wait for are locked, and each new job stores the number of open ones. A locked chain cannot
end. After the flush, the blockers are written.

When a chain ends, the jobs that wait for it are updated and waiting callers notified, in the transaction that ended it or
later: an ended root with `has_waiters` still has work to do. No lock is waited for here; rows that are locked are skipped,
and a worker retries them.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import Connection, inspect
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidJobError, NotFoundError, not_chains
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.base import dead_letter_ids, lowest_id
from sa_jobqueue.models.waits import WaitFor
from sa_jobqueue.operations.transactions import require_transaction
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.statements import blockers, chains, steps
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import JobId, JobStatus, OnFailure


@dataclass(frozen=True, slots=True)
class Edge:
    """A new job and a chain that it waits for."""

    job: JobMixin[Any]
    chain_id: JobId
    index: int
    on_failure: str
    is_resolved: bool = False
    awaits_event: bool = False
    """Whether the chain is a job that waits for an event."""


def add_blockers(session: Session, waiting: Iterable[JobMixin[Any]]) -> None:
    """Add blockers that are new jobs to the session, like the cascade of a relationship."""
    reached = list(waiting)
    while reached:
        for blocker in reached.pop()._blockers:
            job = blocker.chain
            if isinstance(job, JobMixin) and inspect(job).transient and not job._is_enqueued:
                session.add(job)
                reached.append(job)


def declare(connection: Connection, new: Sequence[JobMixin[Any]]) -> list[Edge]:
    """Count the open chains that each new job of a queue waits for, and return the edges, to be written after the jobs.

    Changes: the jobs' `status`, `open_blockers`, `has_waiters`; `has_waiters` of the chains.
    Locks: the roots of existing chains, in the order of their ids.
    Raises: InvalidOptionError in AUTOCOMMIT; NotFoundError or InvalidJobError
    naming the blocker.
    """
    require_transaction(connection, "a job with blockers")
    model = type(new[0])
    by_id: dict[Any, Any] = {job.id: job for job in new}
    edges = [_edge(job, index, blocker) for job in new for index, blocker in enumerate(job._blockers)]
    _check_cycles(edges, by_id)
    ids = sorted({edge.chain_id for edge in edges if edge.chain_id not in by_id}, key=str)
    rows = connection.execute(chains.lock(model), {"ids": ids}) if ids else ()
    root_by_id = {row.id: row for row in rows}
    for edge in edges:
        _check_chain(edge, by_id, root_by_id)
    decided = [
        replace(
            edge,
            is_resolved=edge.chain_id not in by_id and _is_resolved(edge, root_by_id[edge.chain_id]),
            awaits_event=_awaits_event(model, by_id.get(edge.chain_id) or root_by_id[edge.chain_id]),
        )
        for edge in edges
    ]
    awaited_ids = {edge.chain_id for edge in decided if not edge.is_resolved}
    for chain_id in awaited_ids & by_id.keys():
        by_id[chain_id].has_waiters = True
    unmarked = [chain_id for chain_id in ids if chain_id in awaited_ids and not root_by_id[chain_id].has_waiters]
    if unmarked:
        connection.execute(blockers.await_chains(model), {"ids": unmarked})
    open_edges = Counter(edge.job.id for edge in decided if not edge.is_resolved)
    for job in new:
        if job._blockers:
            job.open_blockers = open_edges[job.id]
            job.status = JobStatus.BLOCKED if job.open_blockers else JobStatus.PENDING
    return decided


def _edge(job: JobMixin[Any], index: int, blocker: WaitFor[Any]) -> Edge:
    if isinstance(blocker.chain, JobMixin) and blocker.chain.__jobqueue__ != job.__jobqueue__:
        raise InvalidJobError(f"blockers[{index}]", f"is a {type(blocker.chain).__name__}, of another Job class")
    if blocker.chain_id == job.chain_id:
        raise InvalidJobError(f"blockers[{index}]", "is the job's own chain, which cannot end before it")
    return Edge(job, blocker.chain_id, index, blocker.on_failure)


def _check_chain(edge: Edge, by_id: Mapping[Any, Any], root_by_id: Mapping[Any, Any]) -> None:
    """Check that the chain of an edge exists, as a new job or a row, and is of the type that the handler takes."""
    first, field = by_id.get(edge.chain_id) or root_by_id.get(edge.chain_id), f"blockers[{edge.index}]"
    if first is None:
        reason = "enqueue it before, or in the same flush; nothing was written"
        raise NotFoundError("chain", [edge.chain_id], field=field, reason=reason)
    if first.chain_id != edge.chain_id:
        raise not_chains({edge.chain_id: first.chain_id}, field=field)
    if edge.job._handler is not None:  # of a chain given by its id, the type is known only now
        edge.job._handler.check_blocker(edge.index, first)


def _awaits_event(model: JobClass, root: Any) -> bool:
    """Return whether a root is of a type that `JobQueue.event` has declared in this process."""
    handler = model.__handlers__.get(root.type_name)
    return handler is not None and handler.job_type.is_event


def _is_resolved(edge: Edge, root: Any) -> bool:
    if not root.ended:
        return False
    # A failed chain stays a blocker of a job that must fail with it: the unblocking of the chain's waiters ends the job.
    return root.outcome is JobStatus.COMPLETED or edge.on_failure == OnFailure.CONTINUE


def _check_cycles(edges: Sequence[Edge], new: dict[Any, JobMixin[Any]]) -> None:
    """Refuse jobs that wait for each other: among jobs already there a cycle cannot be."""
    graph: dict[JobId, list[JobId]] = {}
    for edge in edges:
        if edge.chain_id in new:
            graph.setdefault(edge.job.id, []).append(edge.chain_id)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle = " waits for ".join(f"{new[job_id].type_name} {job_id}" for job_id in reversed(error.args[1]))
        raise InvalidJobError("blockers", f"wait for each other in a cycle: {cycle}") from error


def write_edges(connection: Connection, edges: Sequence[Edge]) -> None:
    """Insert the edges of jobs of a queue that have been written.

    Jobs among the blockers that wait for events wait from now on: an event belongs to them before their first attempt.
    """
    model = type(edges[0].job)
    connection.execute(
        blockers.add_edges(model),
        {
            "job_ids": [edge.job.id for edge in edges],
            "chain_ids": [edge.chain_id for edge in edges],
            "indexes": [edge.index for edge in edges],
            "resolved": [edge.is_resolved for edge in edges],
            "policies": [edge.on_failure for edge in edges],
            "traces": [edge.job.trace_context for edge in edges],
        },
    )
    if event_jobs := {edge.chain_id for edge in edges if edge.awaits_event}:
        connection.execute(steps.await_events(model), {"ids": sorted(event_jobs, key=str)})


ROUNDS: Final = 10
"""Statements of `BATCH` edges in one transaction; a chain that many wait for takes several transactions."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A blocked job that the end of a chain made pending or dead."""

    job_id: JobId
    status: JobStatus
    queue_key: QueueKey
    """Its queue and fairness key."""
    type_name: str
    attempt: int


@dataclass(slots=True)
class Unblocked:
    """Jobs that were unblocked, and the work that is left."""

    moved: list[Moved] = field(default_factory=list)
    finished: list[JobId] = field(default_factory=list)
    """Chains whose waiters were all unblocked."""
    unfinished: dict[JobId, JobId | None] = field(default_factory=dict)
    """Chains to continue with: those with many waiters, with the job after which to continue; those whose waiting jobs
    or roots were locked by another transaction; and those that ended because a job died of its blocker."""
    retained: list[JobId] = field(default_factory=list)
    """Chains that only excluded jobs still wait for."""


def unblock(
    connection: Connection,
    model: JobClass,
    chains: dict[JobId, JobId | None],
    *,
    excluded: Sequence[JobId] = (),
    only: Sequence[JobId] | None = None,
) -> Unblocked:
    """Update the jobs that wait for ended chains, in the caller's READ COMMITTED transaction; does nothing in any other.

    `chains`: chains that may have ended, each with the job after which to continue, or None. `excluded`: waiting jobs to
    leave unchanged. `only`: change only these jobs, and keep the chains for later.
    Changes: resolves blockers; waiting jobs become pending or dead; the chains' `has_waiters`.
    Locks: the chains' roots and the waiting jobs; locked rows are skipped.
    """
    result = Unblocked()
    lowest = lowest_id(model.__jobqueue__)
    outcomes = {row.id: row[1] for row in connection.execute(blockers.lock_ended(model), {"ids": list(chains)})}
    if len(outcomes) < len(chains):
        missing_ids = [chain_id for chain_id in chains if chain_id not in outcomes]
        result.unfinished |= dict.fromkeys(connection.scalars(blockers.still_to_unblock(model), {"ids": missing_ids}))
    walk = _Walk({chain_id: chains[chain_id] or lowest for chain_id in outcomes})
    unwoken = _wake_parents(connection, model, list(outcomes), result) if outcomes else set()
    statement = blockers.unblock(model, only=only is not None)
    has_failed = any(outcome != JobStatus.COMPLETED for outcome in outcomes.values())
    for _ in range(ROUNDS):
        if walk.is_at_end:
            break
        parameters = {
            "chains": list(walk.last_ids),
            "outcomes": [str(outcomes[chain_id]) for chain_id in walk.last_ids],
            "afters": list(walk.last_ids.values()),
            "limit": BATCH,
            "dead_letter_ids": dead_letter_ids(model.__jobqueue__, BATCH if has_failed else 0),
            "excluded": list(excluded),
            "ids": list(only or ()),
        }
        rows = connection.execute(statement, parameters).all()
        walk.advance([row for row in rows if row.status is None])
        for row in rows:
            if row.status is not None:
                queue_key = QueueKey(row.queue, row.fairness_key)
                result.moved.append(Moved(row.job_id, JobStatus(row.status), queue_key, row.type_name, row.attempt))
                if row.has_waiters and row.status == JobStatus.DEAD:
                    result.unfinished[row.chain_id] = None
    result.unfinished |= walk.unfinished()
    result.unfinished |= {chain_id: chains[chain_id] for chain_id in unwoken if chain_id not in result.unfinished}
    if only is not None:
        result.unfinished |= chains
        return result
    result.finished = [chain_id for chain_id in walk.finished() if chain_id not in unwoken]
    if excluded and result.finished:
        waited = {"chains": result.finished, "jobs": list(excluded)}
        result.retained = list(connection.scalars(blockers.waiting_among(model), waited))
        result.finished = [chain_id for chain_id in result.finished if chain_id not in result.retained]
    if result.finished:
        connection.execute(blockers.clear_waiters(model), {"ids": result.finished})
    return result


def _wake_parents(connection: Connection, model: JobClass, chain_ids: list[JobId], result: Unblocked) -> set[JobId]:
    """Make jobs due that wait for the results of chains; return the chains for which some were locked."""
    for row in connection.execute(steps.wake_parents(model), {"ids": chain_ids}).all():
        queue_key = QueueKey(row.queue, row.fairness_key)
        result.moved.append(Moved(row.id, JobStatus.PENDING, queue_key, row.type_name, row.attempt))
    return set(connection.scalars(steps.still_waiting(model), {"ids": chain_ids}))


class _Walk:
    """The way through the waiting jobs of some chains, in the order of their ids."""

    def __init__(self, last_ids: dict[JobId, JobId]) -> None:
        self.last_ids = last_ids
        """The last job examined, by chain."""
        self.is_at_end = not last_ids
        self._retry_from: dict[JobId, JobId] = {}

    def advance(self, examined_jobs: Sequence[Any]) -> None:
        """Note the jobs that one statement examined: `(chain_id, job_id, held)`."""
        earlier_ids = dict(self.last_ids)
        for row in examined_jobs:
            self.last_ids[row.chain_id] = max(self.last_ids[row.chain_id], row.job_id)
            if row.held:
                self._retry_from.setdefault(row.chain_id, earlier_ids[row.chain_id])
        self.is_at_end = len(examined_jobs) < BATCH

    def unfinished(self) -> dict[JobId, JobId]:
        """Return the chains to continue with, each with the job after which to continue.

        That is before the first job that was locked, not after the last that was examined: the next call knows of no other.
        """
        return self._retry_from if self.is_at_end else self.last_ids | self._retry_from

    def finished(self) -> list[JobId]:
        """Return the chains all of whose waiting jobs were changed."""
        return [chain_id for chain_id in self.last_ids if chain_id not in self._retry_from] if self.is_at_end else []


def unblock_all(connection: Connection, model: JobClass, chain_ids: Iterable[JobId]) -> None:
    """Unblock all jobs whose rows are not locked; a worker does the rest, and in REPEATABLE READ all of it.

    For operations that end chains in a transaction of the application. Otherwise like `unblock`.
    """
    todo: dict[JobId, JobId | None] = dict.fromkeys(chain_ids)
    tried: set[tuple[JobId, JobId | None]] = set()
    while todo := {chain_id: after for chain_id, after in todo.items() if (chain_id, after) not in tried}:
        tried |= set(todo.items())
        todo = unblock(connection, model, todo).unfinished
