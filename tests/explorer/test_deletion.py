"""Chains deleted and cancelled while others extend, end, redrive, delete or wait for them: in every order there is.

No deadlock and no driver's error in any (the explorer fails on both), no reference to what is gone, nobody left waiting
for what will never come. A step is a statement that locks, or what lies between two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from psycopg.errors import DeadlockDetected, ForeignKeyViolation
from sqlalchemy import Connection, event, func, insert, or_, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, cancel_jobs
from sa_jobqueue.db.session_settings import GUARDS
from sa_jobqueue.errors import ChainNotFoundError, ChainReferencedError, JobEndedError, JobNotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import DeadLetterFilter, cancel_chains, complete_job, delete_chains, redrive_dead_letters
from sa_jobqueue.statements import completions
from sa_jobqueue.types import DeadReason
from tests.explorer import Explorer, Operation, Outcomes, Scenario, Steps
from tests.explorer.statements import by_locks
from tests.explorer.workers import SessionWorker

jobs: JobQueue[Any] = JobQueue()


@jobs.handler("test")
def following_handler() -> None: ...


Ids = dict[str, UUID]
"""The context of a scenario: its jobs, by the letters of their names; `a` has the lowest id."""

REFUSED = (ChainNotFoundError, ChainReferencedError)


# Rows, written as an enqueue, a continuation and a death write them.


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


def line(session: Session) -> Ids:
    """Write three chains: `c` waits for `b` in its root, and `b` for `a` in its continuation `x`."""
    ids = fresh("abcx")
    add(session, ids, "a")
    add(session, ids, "b")
    add(session, ids, "x", chain="b", index=1, waits="a")
    add(session, ids, "c", waits="b")
    return ids


# Operations.


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


# What must be so, whatever happened.


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


def left_of_cascade(connection: Connection, ids: Ids, outcomes: Outcomes) -> str:
    """Check that a cascade took what a continuation waited for that was there before it."""
    ending = left(connection, ids, outcomes)
    assert ending == ("c" if outcomes["continue"].committed else "ac")
    return ending


def explore(
    explorer: Explorer,
    setup: Callable[[Session], Ids],
    *operations: Operation[Ids],
    most: int | None = None,
    check: Callable[[Connection, Ids, Outcomes], str] = left,
) -> dict[str, int]:
    """Run every order, or so many at random; return how often what was left."""
    name = " x ".join(operation.name for operation in operations)
    scenario = Scenario(name=name, setup=setup, operations=operations, check=check)
    report = explorer.explore(scenario, sample=(most, 1) if most else None)
    assert most or report.is_complete, report
    print(report)
    return report.endings


# Two deletions.


def test_concurrent_deletions_of_overlapping_chains_in_other_orders_do_not_deadlock(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        chains,
        Operation("ab", delete("ab"), may_raise=REFUSED),
        Operation("cba", delete("cba"), may_raise=REFUSED),
    )
    assert set(endings) == {"c", "nothing"}


@pytest.mark.long
def test_concurrent_cascading_deletions_leave_consistent_chains(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        line,
        Operation("cascade", delete("c", cascade=True), may_raise=REFUSED),
        Operation("upper", delete("cb"), may_raise=REFUSED),
    )
    assert set(endings) == {"nothing", "a"}


# A deletion, and those who begin to wait for what it deletes or who extend it.


def test_enqueue_with_a_blocker_being_deleted_is_refused_or_keeps_it(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        chains,
        Operation("delete", delete("ba"), may_raise=REFUSED),
        Operation("enqueue", wait_for("ab"), may_raise=REFUSED),
    )
    assert set(endings) == {"c", "abcz"}


def test_blocker_rows_inserted_in_sql_without_a_lock_leave_no_dangling_reference(explorer: Explorer) -> None:
    def by_hand(session: Session, ids: Ids) -> Steps:
        ids["z"] = uuid7()
        add(session, ids, "z")
        yield "job"
        blocker_row = {"job_id": ids["z"], "blocked_by_chain_id": ids["a"], "index": 0, "is_resolved": True}
        session.execute(insert(Job.Blocker).values(blocker_row))

    endings = explore(
        explorer,
        chains,
        Operation("delete", delete("a"), may_raise=REFUSED),
        Operation("by-hand", by_hand, may_raise=(ForeignKeyViolation,)),
    )
    assert set(endings) == {"bc", "abcz"}


def test_a_continuation_added_during_a_deletion_is_deleted_with_its_chain(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        chains,
        Operation("delete", delete("b"), may_raise=REFUSED),
        Operation("continue", extend("b"), may_raise=(JobNotFoundError,)),
    )
    assert set(endings) == {"ac"}


@pytest.mark.long
def test_a_cascade_includes_blockers_of_a_continuation_added_during_it(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        chains,
        Operation("delete", delete("b", cascade=True), may_raise=REFUSED),
        Operation("continue", extend("b", waits="a"), may_raise=(*REFUSED, JobNotFoundError)),
        check=left_of_cascade,
    )
    # Continued first, the chain that it waits for goes too, though its root comes before the one locked already.
    assert set(endings) == {"ac", "c"}


@pytest.mark.long
def test_a_growing_cascade_races_with_other_deletions_and_continuations(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        chains,
        Operation("delete", delete("b", cascade=True), may_raise=REFUSED),
        Operation("continue", extend("b", waits="a"), may_raise=(*REFUSED, JobNotFoundError)),
        Operation("other", delete("ba"), may_raise=REFUSED),
        most=60,
    )
    assert set(endings) == {"ac", "c"}


# A deletion, and workers.


def test_a_completion_racing_with_a_deletion_leaves_no_trace_of_the_job(explorer: Explorer) -> None:
    def work(session: Session, ids: Ids) -> Steps:
        worker = SessionWorker(session, "batch:1", queues=(queue_of(ids),))
        claimed = worker.claim(1)
        yield "claim"
        return bool(worker.complete(*claimed)) if claimed else None

    endings = explore(
        explorer,
        partial(chains, names="a"),
        Operation("work", work, autocommit=True, settings=GUARDS),
        Operation("delete", delete("a")),
    )
    assert set(endings) == {"nothing"}


class Lost(Exception):  # noqa: N818 - a signal
    """What a worker rolls back with when its completion was fenced off."""


def test_a_handlers_writes_are_kept_only_if_it_completed_before_the_deletion(explorer: Explorer) -> None:
    def work(session: Session, ids: Ids) -> Steps:
        worker = SessionWorker(session, "session:1", queues=(queue_of(ids),))
        claimed = worker.claim(1)
        session.commit()
        yield "claim"
        if not claimed:
            return False
        ids["z"] = uuid7()
        add(session, ids, "z")
        yield "writes"
        given = {"job_id": claimed[0].id, "job_attempt": 1, "job_output": "1", "worker_id": worker.worker_id}
        if not session.scalars(completions.complete_one(Job), given).all():
            raise Lost
        return True

    endings = explore(
        explorer,
        partial(chains, names="a"),
        Operation("work", work, may_raise=(Lost,), settings=GUARDS),
        Operation("delete", delete("a")),
    )
    assert set(endings) == {"nothing", "z"}


def test_a_deletion_survives_a_deadlock_with_a_handler(explorer: Explorer) -> None:
    """PostgreSQL ends one of the two: the attempt, which is tried again, or the deletion, which tries again itself."""

    def work(session: Session, ids: Ids) -> Steps:
        session.execute(select(Job.id).where(Job.id == ids["b"]).with_for_update(key_share=True)).all()
        yield "as for a job that waits for b"
        session.execute(select(Job.id).where(Job.id == ids["a"]).with_for_update(key_share=True)).all()

    scenario = Scenario(
        name="handler x delete",
        setup=chains,
        operations=[
            Operation("work", work, may_raise=(DeadlockDetected,)),
            Operation("delete", delete("ab", survives=True)),
        ],
        check=left,
        allow_deadlock=True,
    )
    report = explorer.explore(scenario)
    assert report.endings == {"c": report.schedules}
    assert all("delete=committed" in kinds for kinds in report.outcomes)


# A deletion, and those who change single jobs.


def dead_line(session: Session) -> Ids:
    """Write the line, the continuation `x` dead and still waiting for `a`."""
    ids = line(session)
    kill(session, ids, "x")
    return ids


def redrive(session: Session, ids: Ids) -> list[Any]:
    return redrive_dead_letters(session, where=DeadLetterFilter(queues=[queue_of(ids)])).ids


@pytest.mark.long
def test_redrive_races_with_deletion_of_the_same_chains(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        dead_line,
        Operation("delete", delete("bca"), may_raise=REFUSED),
        Operation("redrive", by_locks(redrive)),
    )
    assert set(endings) == {"nothing"}


def cancel_one(session: Session, ids: Ids) -> None:
    cancel_jobs(session, [ids["x"], ids["c"]])


def cancel_all(names: str) -> Callable[[Session, Ids], Steps]:
    def run(session: Session, ids: Ids) -> tuple[Any, ...]:
        return tuple(cancel_chains(session, [ids[name] for name in names]).ids)

    return by_locks(run)


@pytest.mark.long
def test_cancelling_jobs_races_with_deleting_their_chains(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        line,
        Operation("delete", delete("c", cascade=True), may_raise=REFUSED),
        Operation("cancel", by_locks(cancel_one), may_raise=(JobNotFoundError,)),
    )
    assert set(endings) == {"nothing"}


@pytest.mark.long
def test_cancelling_chains_and_jobs_races_with_deleting_the_chains(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        line,
        Operation("delete", delete("cb"), may_raise=REFUSED),
        Operation("cancel", cancel_all("cba"), may_raise=REFUSED),
        Operation("one", by_locks(cancel_one), may_raise=(JobNotFoundError,)),
        most=60,
    )
    assert set(endings) == {"a"}


def test_a_continuation_does_not_escape_the_cancellation_of_its_chain(explorer: Explorer) -> None:
    def check(connection: Connection, ids: Ids, outcomes: Outcomes) -> str:
        consistent(connection, ids, outcomes)
        assert outcomes["cancel"].value == (ids["a"], ids["b"])
        last = "y" if outcomes["continue"].committed else "b"
        status = connection.execute(select(Job.status).where(Job.id == ids[last])).scalar_one()
        assert status is JobStatus.CANCELLED
        ended = connection.execute(select(Job.chain_completed_at).where(Job.id == ids["b"])).scalar_one()
        assert ended is not None
        return last

    operations: Sequence[Operation[Ids]] = [
        Operation("cancel", cancel_all("ba")),
        Operation("continue", extend("b"), may_raise=(JobEndedError,)),
    ]
    report = explorer.explore(Scenario(name="cancel x go on", setup=chains, operations=operations, check=check))
    assert report.is_complete
    assert set(report.endings) == {"b", "y"}
