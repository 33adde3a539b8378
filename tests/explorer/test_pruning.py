"""Retention while others redrive, wait for, delete and prune the same chains: in every order there is.

The pruner has seen the chains as ended before anything else began, and waits for no lock. The invariants are those
of a deletion (`deletion`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, func, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.operations import DeadLetterFilter, PruneCursor, prune, redrive_dead_letters
from sa_jobqueue.settings import Retention, RetentionRules
from tests.explorer import Explorer, Operation, Outcomes, Steps
from tests.explorer.deletion import REFUSED, Ids, add, chains, delete, explore, fresh, kill, left, queue_of, wait_for
from tests.explorer.statements import by_locks

AT_ONCE = Retention(completed=timedelta(0), cancelled=timedelta(0), dead=timedelta(0))


def cancelled(session: Session, *, names: str = "ab") -> Ids:
    """Write chains that have ended."""
    ids = chains(session, names=names)
    ended = {"status": JobStatus.CANCELLED, "completed_at": func.now(), "chain_completed_at": func.now()}
    session.execute(update(Job).where(Job.id.in_(ids.values())).values(ended))
    return ids


def died(session: Session) -> Ids:
    """Write a chain that is dead in its continuation, `x`."""
    ids = fresh("bx")
    add(session, ids, "b")
    completed = {"status": JobStatus.COMPLETED, "completed_at": func.now()}
    session.execute(update(Job).where(Job.id == ids["b"]).values(completed))
    add(session, ids, "x", chain="b", index=1)
    update_of_x = update(Job).where(Job.id == ids["x"])
    session.execute(update_of_x.values(status=JobStatus.RUNNING, leased_by="w:1", attempt=1))
    session.execute(update_of_x.values(status=JobStatus.DEAD, leased_by=None, completed_at=func.now()))
    kill(session, ids, "x")
    return ids


def pruning(names: str) -> Callable[[Session, Ids], Steps]:
    """Prune as a worker does that found these chains; return how many went."""

    def run(session: Session, ids: Ids) -> int:
        session.execute(func.set_config("lock_timeout", "1ms", True).select())  # it waits for no lock
        rules = RetentionRules(queues={queue_of(ids): AT_ONCE})
        return sum(prune(session, rules, cursor=PruneCursor(due=tuple(ids[name] for name in names))).chains.values())

    return by_locks(run)


def redrive(session: Session, ids: Ids) -> Any:
    """Redrive the dead chains."""
    return len(redrive_dead_letters(session, where=DeadLetterFilter(job_ids=list(ids.values()))).ids)


@pytest.mark.slow
def test_a_chain_is_either_redriven_or_pruned(explorer: Explorer) -> None:
    def one_or_the_other(connection: Connection, ids: Ids, outcomes: Outcomes) -> str:
        ending = left(connection, ids, outcomes)
        assert (outcomes["prune"].value, outcomes["redrive"].value) == ((1, 0) if ending == "nothing" else (0, 1))
        return ending

    redriving = Operation("redrive", by_locks(redrive), may_raise=REFUSED)
    endings = explore(explorer, died, Operation("prune", pruning("b")), redriving, check=one_or_the_other)
    assert set(endings) == {"nothing", "bx"}


@pytest.mark.slow
def test_enqueue_with_a_blocker_due_for_pruning_is_refused_or_keeps_it(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        cancelled,
        Operation("prune", pruning("ab")),
        Operation("enqueue", wait_for("ba"), may_raise=REFUSED),
    )
    # Held by who enqueues, both stay; gone before, the enqueue is refused.
    assert {"nothing", "abz"} <= set(endings)
    assert all("z" not in ending or ending == "abz" for ending in endings)


@pytest.mark.long
def test_two_pruners_and_a_deletion_of_the_same_chains_never_deadlock(explorer: Explorer) -> None:
    endings = explore(
        explorer,
        partial(cancelled, names="abc"),
        Operation("one", pruning("abc")),
        Operation("other", pruning("abc")),
        Operation("delete", delete("cb"), may_raise=REFUSED),
        most=30,
    )
    assert set(endings) <= {"nothing", "a", "b", "c", "ab", "ac", "bc"}
    assert "nothing" in endings
