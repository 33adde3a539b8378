"""Blockers of new jobs: what happens when jobs with blockers are flushed, in any order.

Before the flush, the chains they wait for are locked, and each new job stores the number of open ones. A locked chain cannot
end. After the flush, the blockers are written.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, inspect
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ChainNotFoundError, InvalidJobError, NotAChainError, require_postgresql
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.transactions import queue_connection, require_transaction
from sa_jobqueue.statements import blockers, chains
from sa_jobqueue.types import JobId, JobStatus, OnFailure


@dataclass(frozen=True, slots=True)
class Edge:
    """A new job and a chain that it waits for."""

    job: JobMixin[Any]
    chain_id: JobId
    index: int
    on_failure: str
    is_resolved: bool = False


_declared: WeakKeyDictionary[Session, list[Edge]] = WeakKeyDictionary()
"""The edges of a flush that is under way."""


@event.listens_for(Session, "before_flush")
def _before_flush(session: Session, context: object, instances: object) -> None:
    waiting = [job for job in session.new if isinstance(job, JobMixin) and job._blockers]
    _declared.pop(session, None)
    if waiting:
        add_blockers(session, waiting)
        new = [job for job in session.new if isinstance(job, JobMixin)]
        _declared[session] = declare(_connection(session, waiting), new)


@event.listens_for(Session, "after_flush")
def _after_flush(session: Session, context: object) -> None:
    edges = _declared.pop(session, None)
    if edges:
        write_edges(_connection(session, [edge.job for edge in edges]), edges)


def _connection(session: Session, jobs: Sequence[JobMixin[Any]]) -> Connection:
    # An application with several databases binds the queue's class to one of them.
    connection = queue_connection(session, type(jobs[0]))
    require_postgresql(connection.dialect.name)
    return connection


def add_blockers(session: Session, waiting: Iterable[JobMixin[Any]]) -> None:
    """Add blockers that are new jobs to the session, like the cascade of a relationship."""
    reached = list(waiting)
    while reached:
        for one in reached.pop()._blockers:
            job = one.chain
            if isinstance(job, JobMixin) and inspect(job).transient and not job._is_enqueued:
                session.add(job)
                reached.append(job)


def declare(connection: Connection, new: Sequence[JobMixin[Any]]) -> list[Edge]:
    """Count the open chains that each new job waits for, and return its blockers, to be written after the jobs.

    Changes: the jobs' `status`, `open_blockers`, `has_waiters`; `has_waiters` of the chains.
    Locks: the roots of existing chains, in the order of their ids, until the transaction ends.
    Raises: TransactionRequiredError in AUTOCOMMIT; ChainNotFoundError, NotAChainError, InvalidBlockersError, InvalidJobError
    naming the blocker. Nothing is written then.
    """
    if not any(job._blockers for job in new):
        return []
    require_transaction(connection, "a job with blockers")
    edges: list[Edge] = []
    by_id = {job.id: job for job in new}
    for job in new:
        for index, one in enumerate(job._blockers):
            if isinstance(one.chain, JobMixin) and one.chain.__jobqueue__ != job.__jobqueue__:
                raise InvalidJobError(f"blockers[{index}]", f"is a {type(one.chain).__name__}, of another queue's tables")
            if one.chain_id == job.chain_id:
                raise InvalidJobError(f"blockers[{index}]", "is the job's own chain, which cannot end before it")
            edges.append(Edge(job, one.chain_id, index, one.on_failure))
    _check_cycles(edges, by_id)
    decided: list[Edge] = []
    for model in {type(edge.job) for edge in edges}:
        own = [edge for edge in edges if type(edge.job) is model]
        decided += _decide(connection, model, own, by_id)
    open_edges: dict[JobId, int] = {}
    for edge in decided:
        open_edges[edge.job.id] = open_edges.get(edge.job.id, 0) + (not edge.is_resolved)
    for job in {edge.job for edge in decided}:
        job.open_blockers = open_edges[job.id]
        job.status = JobStatus.BLOCKED if job.open_blockers else JobStatus.PENDING
    return decided


def _decide(
    connection: Connection, model: type[JobMixin[Any]], edges: Sequence[Edge], new: dict[Any, JobMixin[Any]]
) -> list[Edge]:
    ids = sorted({edge.chain_id for edge in edges if edge.chain_id not in new}, key=str)
    found = {row.id: row for row in connection.execute(chains.lock(model), {"ids": ids})} if ids else {}
    for edge in edges:
        if edge.chain_id in new:
            new[edge.chain_id].has_waiters = True
        elif edge.chain_id not in found:
            raise ChainNotFoundError(
                [edge.chain_id],
                field=f"blockers[{edge.index}]",
                reason="enqueue it before, or in the same flush; nothing was written",
            )
        elif found[edge.chain_id].chain_id != edge.chain_id:
            raise NotAChainError({edge.chain_id: found[edge.chain_id].chain_id}, field=f"blockers[{edge.index}]")
        if edge.job._handler is not None:  # of a chain given by its id, the type is known only now
            first = new[edge.chain_id] if edge.chain_id in new else found[edge.chain_id]
            edge.job._handler.check_blocker(edge.index, first)
    decided = [
        replace(edge, is_resolved=edge.chain_id not in new and _is_resolved(edge, found[edge.chain_id])) for edge in edges
    ]
    marked = sorted({edge.chain_id for edge in decided if not edge.is_resolved and edge.chain_id in found}, key=str)
    unmarked = [chain_id for chain_id in marked if not found[chain_id].has_waiters]
    if unmarked:
        connection.execute(blockers.await_chains(model), {"ids": unmarked})
    return decided


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
    """Insert the blockers of jobs that have been written."""
    for model in {type(edge.job) for edge in edges}:
        own = [edge for edge in edges if type(edge.job) is model]
        connection.execute(
            blockers.add_edges(model),
            {
                "job_ids": [edge.job.id for edge in own],
                "chain_ids": [edge.chain_id for edge in own],
                "indexes": [edge.index for edge in own],
                "resolved": [edge.is_resolved for edge in own],
                "policies": [edge.on_failure for edge in own],
                "traces": [edge.job.trace_context for edge in own],
            },
        )
