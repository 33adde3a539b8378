"""One job a transaction: `session.add(Job)` or `handler.enqueue`, beside a plain row of the same columns and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.rows import JOB_TYPE, PlainBase, PlainRow, payload, plain_row
from sa_jobqueue import Job, JobQueue


def scenario() -> Scenario:
    """Return the cases."""
    plain = "session.add(plain row)"
    return Scenario(
        name="single enqueue",
        says="one job enqueued and committed at a time, by one session on one connection",
        cases=(
            Case(name=plain, run=_adding(plain_row), prepare=_prepare, most=2_000),
            Case(
                name="session.add(Job)",
                run=_adding(lambda number: Job(JOB_TYPE, payload(number))),
                prepare=_prepare,
                against=Comparison(case=plain),
                most=2_000,
            ),
            Case(
                name="handler.enqueue",
                run=_enqueueing,
                prepare=_prepare,
                against=Comparison(case=plain),
                most=2_000,
            ),
        ),
    )


def _enqueueing(place: Place, watch: Stopwatch, jobs: int) -> int:
    queue = JobQueue()

    @queue.handler(JOB_TYPE)
    def no_op(document: dict[str, Any]) -> None: ...

    engine = place.engine(size=1)
    with Session(engine) as session:
        no_op.enqueue(session, payload(-1))
        session.commit()
        with watch:
            for number in range(jobs):
                no_op.enqueue(session, payload(number))
                session.commit()
    engine.dispose()
    return int(place.scalar("SELECT count(*) FROM job")) - 1


def _prepare(place: Place, jobs: int) -> None:
    place.clear()
    with place.begin() as connection:
        PlainBase.metadata.drop_all(connection)
        PlainBase.metadata.create_all(connection)


def _adding(make: Callable[[int], Job | PlainRow]) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        engine = place.engine(size=1)
        with Session(engine) as session:
            session.add(make(-1))  # connects, and compiles the statement
            session.commit()
            with watch:
                for number in range(jobs):
                    session.add(make(number))  # not referenced further, or each commit would expire all those before it
                    session.commit()
        engine.dispose()
        return int(place.scalar("SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM plain_row)")) - 1

    return run
