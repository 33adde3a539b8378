"""What our own ways to send statements gain over SQLAlchemy's: the statements of a worker, and arrays of many jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeDecorator

from benchmarks import pgbench, rows, workers
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job, JobQueue, enqueue_many
from sa_jobqueue.db.compiled import Compiled
from sa_jobqueue.db.compiled import _compiled as compiled_statements
from sa_jobqueue.statements._arrays import ArrayParameter

_DRAIN, _ENQUEUE = "drain", "enqueue_many"


def scenario() -> Scenario:
    """Return the cases."""
    drain, enqueue = Comparison(case=_DRAIN), Comparison(case=_ENQUEUE)
    return Scenario(
        name="execution",
        says=f"a drain with {pgbench.BATCH} jobs a claim, and many jobs in one transaction; each beside SQLAlchemy's own",
        cases=(
            Case(name=_DRAIN, run=_drain(nullcontext), prepare=rows.fill),
            Case(name="drain, SQLAlchemy's execution", run=_drain(_by_sqlalchemy), prepare=rows.fill, against=drain),
            Case(name="drain, psycopg's arrays", run=_drain(_by_psycopg), prepare=rows.fill, against=drain),
            Case(name=_ENQUEUE, run=_enqueue(enqueue_many)),
            Case(name="insertmanyvalues", run=_enqueue(_insert_many_values), against=enqueue),
        ),
    )


@contextmanager
def _by_sqlalchemy() -> Iterator[None]:
    """Within, workers execute each statement by SQLAlchemy's connection."""

    async def execute(self: Compiled, connection: AsyncConnection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        result: Any = await connection.execute(self._statement, parameters)  # type: ignore[call-overload]
        return result.all() if result.returns_rows else ()

    with patch.object(Compiled, "execute", execute):
        yield


@contextmanager
def _by_psycopg() -> Iterator[None]:
    """Within, psycopg writes the elements of arrays."""
    with (
        patch.object(ArrayParameter, "bind_processor", TypeDecorator.bind_processor),
        patch.dict(compiled_statements, clear=True),
    ):
        yield


def _drain(execution: Callable[[], Any]) -> Callable[[Place, Stopwatch, int], int]:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def _no_op(order: Any) -> None: ...

    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        with execution():
            return workers.drain(place, watch, jobs, queue, concurrency=pgbench.BATCH)

    return run


def _insert_many_values(session: Session, jobs: list[Job]) -> None:
    values = [
        {name: getattr(job, name) for name in ("id", "chain_id", "type_name", "chain_type_name", "input")} for job in jobs
    ]
    session.execute(sa.insert(Job).returning(Job.id), values)


def _enqueue(write: Callable[[Session, list[Job]], object]) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        engine = place.engine(size=1)
        with Session(engine) as session:
            write(session, [Job(rows.JOB_TYPE, rows.payload(0))])  # the first call of a process compiles its statement
            session.commit()
            session.connection()
            new = [Job(rows.JOB_TYPE, rows.payload(number)) for number in range(jobs)]
            with watch:
                write(session, new)
                session.commit()
        engine.dispose()
        return rows.count(place) - 1

    return run
