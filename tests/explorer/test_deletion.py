"""Chains deleted and cancelled while others extend, end, redrive, delete or wait for them: in every order there is.

No deadlock and no driver's error in any (the explorer fails on both), no reference to a deleted row, no job left waiting
for what will never come. A step is a statement that locks, or what lies between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from psycopg.errors import DeadlockDetected, ForeignKeyViolation
from sqlalchemy import Connection, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, cancel_jobs
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.errors import JobEndedError, NotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import DeadLetterFilter, cancel_chains, redrive_dead_letters
from sa_jobqueue.statements import completions
from tests.explorer import Explorer, Operation, Outcomes, Scenario, Steps
from tests.explorer.deletion import (
    REFUSED,
    Ids,
    add,
    chains,
    consistent,
    delete,
    explore,
    extend,
    fresh,
    kill,
    left,
    queue_of,
    wait_for,
)
from tests.explorer.statements import by_locks
from tests.explorer.workers import SessionWorker

pytestmark = pytest.mark.slow

# Rows, written as an enqueue, a continuation and a death write them.


def line(session: Session) -> Ids:
    """Write three chains: `c` waits for `b` in its root, and `b` for `a` in its continuation `x`."""
    ids = fresh("abcx")
    add(session, ids, "a")
    add(session, ids, "b")
    add(session, ids, "x", chain="b", index=1, waits="a")
    add(session, ids, "c", waits="b")
    return ids


# What must be so, whatever happened.


def left_of_cascade(connection: Connection, ids: Ids, outcomes: Outcomes) -> str:
    """Check that a cascade deleted the blockers of a continuation that was there before it."""
    ending = left(connection, ids, outcomes)
    assert ending == ("c" if outcomes["continue"].committed else "ac")
    return ending


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
        Operation("continue", extend("b"), may_raise=(NotFoundError,)),
    )
    assert set(endings) == {"ac"}


@pytest.mark.long
def test_a_cascade_includes_blockers_of_a_continuation_added_during_it(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        chains,
        Operation("delete", delete("b", cascade=True), may_raise=REFUSED),
        Operation("continue", extend("b", waits="a"), may_raise=(*REFUSED, NotFoundError)),
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
        Operation("continue", extend("b", waits="a"), may_raise=(*REFUSED, NotFoundError)),
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
    """The error that rolls a worker back when its completion was fenced off."""


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
        parameters = {"job_id": claimed[0].id, "job_attempt": 1, "job_output": "1", "worker_id": worker.worker_id}
        parameters["table_oid"] = claimed[0].table_oid
        if not session.scalars(completions.complete_one(Job), parameters).all():
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
        Operation("cancel", by_locks(cancel_one), may_raise=(NotFoundError,)),
    )
    assert set(endings) == {"nothing"}


@pytest.mark.long
def test_cancelling_chains_and_jobs_races_with_deleting_the_chains(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        line,
        Operation("delete", delete("cb"), may_raise=REFUSED),
        Operation("cancel", cancel_all("cba"), may_raise=REFUSED),
        Operation("one", by_locks(cancel_one), may_raise=(NotFoundError,)),
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
