"""Many jobs in one transaction, beside COPY of the same rows into the same table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from benchmarks import rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job, JobQueue, enqueue_many

_COPY = "COPY"


def scenario() -> Scenario:
    """Return the cases."""
    limit = Comparison(case=_COPY)
    return Scenario(
        name="bulk enqueue",
        says="all jobs in one transaction, after a first call of one; making the objects is part of the time",
        cases=(
            Case(name=_COPY, run=_copy),
            Case(name="handler.enqueue_many", run=_in_session(_enqueue_by_copy), against=limit),
            Case(name="enqueue_many", run=_in_session(_enqueue_many), against=limit),
            Case(name="session.add_all", run=_in_session(_add_all), against=limit),
        ),
    )


def _jobs(count: int) -> list[Job]:
    return [Job(rows.JOB_TYPE, rows.payload(number)) for number in range(count)]


_queue = JobQueue()


@_queue.handler(rows.JOB_TYPE)
def _no_op(payload: dict[str, Any]) -> None: ...


def _enqueue_by_copy(session: Session, jobs: int) -> None:
    _no_op.enqueue_many(session, map(rows.payload, range(jobs)))


def _enqueue_many(session: Session, jobs: int) -> None:
    enqueue_many(session, _jobs(jobs))


def _add_all(session: Session, jobs: int) -> None:
    session.add_all(_jobs(jobs))


def _in_session(enqueue: Callable[[Session, int], None]) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        engine = place.engine(size=1)
        with Session(engine) as session:
            enqueue(session, 1)  # the first call of a process compiles its statement
            session.commit()
            session.connection()
            with watch:
                enqueue(session, jobs)
                session.commit()
        engine.dispose()
        return rows.count(place) - 1

    return run


def _copy(place: Place, watch: Stopwatch, jobs: int) -> int:
    rows.copy_timed(place, watch, jobs)
    return rows.count(place)
