"""Chains as rows, the operations that delete and extend them, and what must be so after any order of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, event, func, insert, or_, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.errors import ChainReferencedError, NotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import complete_job, delete_chains
from sa_jobqueue.types import DeadReason
from tests.explorer import Explorer, Operation, Outcomes, Scenario, Steps
from tests.explorer.statements import by_locks

jobs: JobQueue[Any] = JobQueue()


@jobs.handler("test")
def following_handler() -> None: ...


Ids = dict[str, UUID]
"""The context of a scenario: its jobs, by their one-letter names; `a` has the lowest id."""


REFUSED = (NotFoundError, ChainReferencedError)


def fresh(names: str) -> Ids:
    return dict(zip(names, sorted(uuid7() for _ in names), strict=True))


def queue_of(ids: Ids) -> str:
    """Give the schedule's own queue: what earlier ones left lies in others."""
    return f"q{min(ids.values()).hex}"


def add(session: Session, ids: Ids, name: str, *, chain: str = "", index: int = 0, waits: Iterable[str] = ()) -> None:
    """Write one job, and rows of `job_blocker` for the chains it waits for; `chain` names the root of a continuation."""
    blockers = list(waits)
    row: dict[str, Any] = {"id": ids[name], "chain_id": ids[chain or name], "chain_index": index, "queue": queue_of(ids)}
    row |= {"type_name": "test", "chain_type_name": "test", "open_blockers": len(blockers)}
    session.execute(insert(Job).values(row | {"status": JobStatus.BLOCKED if blockers else JobStatus.PENDING}))
    blocker_rows = [
        {"job_id": ids[name], "blocked_by_chain_id": ids[blocker], "index": place} for place, blocker in enumerate(blockers)
    ]
    if blocker_rows:
        session.execute(insert(Job.Blocker).values(blocker_rows))
    for blocker in blockers:
        session.execute(update(Job).where(Job.id == ids[blocker]).values(has_waiters=True))


def kill(session: Session, ids: Ids, name: str) -> None:
    """Let a blocked job be dead, as of a blocker that failed."""
    job = ids[name]
    session.execute(update(Job).where(Job.id == job).values(status=JobStatus.DEAD, completed_at=func.now()))
    root = session.execute(select(Job.chain_id).where(Job.id == job)).scalar_one()
    outcome = None if root == job else JobStatus.DEAD
    session.execute(update(Job).where(Job.id == root).values(chain_completed_at=func.now(), chain_status=outcome))
    dead_letter = {"id": uuid7(), "job_id": job, "chain_id": root, "queue": queue_of(ids), "type_name": "test"}
    dead_letter |= {"input_version": 1, "reason": DeadReason.BLOCKER_FAILED, "attempts": 0}
    session.execute(insert(Job.DeadLetter).values(dead_letter))


def chains(session: Session, *, names: str = "abc") -> Ids:
    """Write chains of one job each."""
    ids = fresh(names)
    for name in names:
        add(session, ids, name)
    return ids


def delete(names: str, *, cascade: bool = False, survives: bool = False) -> Callable[[Session, Ids], Steps]:
    """Delete chains; return the names of those that went with them, too. `survives`: it may be ended by a deadlock."""

    def run(session: Session, ids: Ids) -> list[str]:
        with no_deadlock(session) if not survives else nullcontext():
            deleted = delete_chains(session, [ids[name] for name in names], cascade=cascade).ids
        return sorted(name for name, job_id in ids.items() if job_id in deleted)

    return by_locks(run)


@contextmanager
def no_deadlock(session: Session) -> Iterator[None]:
    """Fail when a deletion was the victim of a deadlock, and tried again: among our own operations there must be none."""
    engine, errors = session.connection().engine, list[str]()

    def note(context: Any) -> None:
        errors.append(type(context.original_exception).__name__)

    event.listen(engine, "handle_error", note)
    try:
        yield
        assert errors == []
    finally:
        event.remove(engine, "handle_error", note)


def wait_for(names: str, *, new: str = "z") -> Callable[[Session, Ids], Steps]:
    """Enqueue a job that waits for chains, named in this order."""

    def run(session: Session, ids: Ids) -> None:
        job = Job("test", blockers=[ids[name] for name in names], queue=queue_of(ids))
        ids[new] = job.id
        session.add(job)
        session.flush()

    return by_locks(run)


def extend(name: str, *, waits: str = "", new: str = "y") -> Callable[[Session, Ids], Steps]:
    """Complete a job without a worker and continue its chain, with a job that may wait for other chains."""

    def run(session: Session, ids: Ids) -> None:
        blockers = [ids[name] for name in waits]
        following = following_handler.continuation(blockers=blockers, queue=queue_of(ids))
        ids[new] = following.job.id
        complete_job(session, ids[name], following)

    return by_locks(run)


def consistent(connection: Connection, ids: Ids, outcomes: Outcomes) -> set[str]:
    """Check the schedule's rows; return the names of jobs that are left."""
    jobs = {row.id: row for row in connection.execute(select(Job.__table__).where(Job.id.in_(ids.values())))}
    blocker_row = Job.Blocker
    touches = or_(blocker_row.job_id.in_(ids.values()), blocker_row.blocked_by_chain_id.in_(ids.values()))
    rows = connection.execute(
        select(blocker_row.job_id, blocker_row.blocked_by_chain_id, blocker_row.is_resolved).where(touches)
    ).all()
    for job_id, chain_id, is_resolved in rows:
        assert job_id in jobs, "an edge from a job that is gone"
        assert chain_id in jobs, "an edge to a chain that is gone"
        root = jobs[chain_id]
        assert is_resolved or root.has_waiters, "an edge that nobody will close"
    for job in jobs.values():
        assert job.chain_id in jobs, "a continuation without its chain"
        assert job.open_blockers == sum(not e.is_resolved for e in rows if e.job_id == job.id), "blockers counted wrongly"
        assert (job.status is JobStatus.BLOCKED) <= (job.open_blockers > 0), "blocked by nothing"
    attempts = connection.execute(select(Job.Attempt.job_id).where(Job.Attempt.job_id.in_(ids.values()))).scalars()
    assert set(attempts) <= set(jobs), "history of a job that is gone"
    dead_letter = Job.DeadLetter
    unresolved = select(dead_letter.job_id).where(dead_letter.job_id.in_(ids.values()), dead_letter.resolution.is_(None))
    assert set(connection.scalars(unresolved)) <= set(jobs), "an open letter of a job that is gone"
    for outcome in outcomes.values():
        if outcome.committed and isinstance(outcome.value, list):
            assert not {job.chain_id for job in jobs.values()} & {ids[name] for name in outcome.value if name in ids}
    return {name for name, job_id in ids.items() if job_id in jobs}


def left(connection: Connection, ids: Ids, outcomes: Outcomes) -> str:
    return "".join(sorted(consistent(connection, ids, outcomes))) or "nothing"


def explore(
    explorer: Explorer,
    setup: Callable[[Session], Ids],
    *operations: Operation[Ids],
    most: int | None = None,
    check: Callable[[Connection, Ids, Outcomes], str] = left,
) -> dict[str, int]:
    """Run every order, or so many at random; return how often which chains were left."""
    name = " x ".join(operation.name for operation in operations)
    scenario = Scenario(name=name, setup=setup, operations=operations, check=check)
    report = explorer.explore(scenario, sample=(most, 1) if most else None)
    assert most or report.is_complete, report
    print(report)
    return report.endings
