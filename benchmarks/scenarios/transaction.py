"""The cost that a job adds to a transaction of an application, beside that of another row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from uuid import UUID

from sqlalchemy import MetaData, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.rows import JOB_TYPE, payload
from sa_jobqueue import JobQueue, enqueue_many
from sa_jobqueue.ids import uuid7

_COST: Final = "cpu_us"
"""CPU time of the client and of the server, by which cases are compared: waiting for the disk hides the difference."""
_ALONE: Final = "the application's row"
_ROW: Final = f"{_ALONE} and another"
_TEXT: Final = f"{_ALONE} and a text INSERT"
_ROWS: Final = "add_all of rows"
_PAYLOADS: Final = "handler.enqueue_many"
ADD_ALL: Final = "add_all of jobs"
ENQUEUE_MANY: Final = "enqueue_many of jobs"
_TRANSACTIONS: Final = 500


class _Base(DeclarativeBase):
    metadata = MetaData()


class _Order(_Base):
    """The row that the application writes in each transaction."""

    __tablename__ = "shop_order"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    is_paid: Mapped[bool]


class _Entry(_Base):
    """Another row of the application, of another class: the unit of work writes the rows of a class in one statement."""

    __tablename__ = "journal_entry"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str]
    priority: Mapped[int]
    document: Mapped[Any] = mapped_column(JSONB)


_INSERT: Final = text(
    "INSERT INTO journal_entry (id, kind, priority, document) VALUES (:id, :kind, :priority, CAST(:document AS jsonb))"
)

_queue = JobQueue()


@_queue.handler(JOB_TYPE)
def _no_op(document: dict[str, Any]) -> None: ...


def scenario() -> Scenario:
    """Return the cases of one job in a transaction."""
    additions: dict[str, tuple[_Add, str | None]] = {
        _ALONE: (lambda session, number: None, None),
        _ROW: (lambda session, number: session.add(_entry(number)), None),
        _TEXT: (_insert_by_text, None),
        "session.add(job)": (lambda session, number: session.add(_no_op.job(payload(number))), _ROW),
        "handler.enqueue": (lambda session, number: _no_op.enqueue(session, payload(number)), _TEXT),
    }
    return Scenario(
        name="transaction",
        says="an application's row and a job in one commit; the ratio is of what is added to the CPU time of the row alone",
        cases=[
            Case(
                name=f"{kind}: {name}",
                run=run(add),
                prepare=_prepare,
                against=_beyond_row(kind, compared),
                most=_TRANSACTIONS,
            )
            for kind, run in (("sync", _sync), ("async", _async))
            for name, (add, compared) in additions.items()
        ],
    )


def bulk() -> Scenario:
    """Return the cases of many jobs in a transaction."""

    def add_rows(session: Session, jobs: int) -> None:
        session.add_all(map(_entry, range(jobs)))

    def add_jobs(session: Session, jobs: int) -> None:
        session.add_all([_no_op.job(payload(number)) for number in range(jobs)])

    def enqueue_payloads(session: Session, jobs: int) -> None:
        _no_op.enqueue_many(session, map(payload, range(jobs)))

    def enqueue_jobs(session: Session, jobs: int) -> None:
        enqueue_many(session, [_no_op.job(payload(number)) for number in range(jobs)])

    return Scenario(
        name="bulk transaction",
        says="many rows of the application or jobs in one commit; making the objects is part of the time",
        cases=[
            Case(name=_ROWS, run=_at_once(add_rows), prepare=_prepare),
            Case(name=ADD_ALL, run=_at_once(add_jobs), prepare=_prepare, against=Comparison(case=_ROWS, figure=_COST)),
            Case(name=_PAYLOADS, run=_at_once(enqueue_payloads), prepare=_prepare),
            Case(
                name=ENQUEUE_MANY,
                run=_at_once(enqueue_jobs),
                prepare=_prepare,
                against=Comparison(case=_PAYLOADS, figure=_COST),
            ),
        ],
    )


def _beyond_row(kind: str, compared: str | None) -> Comparison | None:
    if compared is None:
        return None
    return Comparison(case=f"{kind}: {compared}", figure=_COST, beyond=f"{kind}: {_ALONE}")


def _entry(number: int) -> _Entry:
    return _Entry(id=uuid7(), kind=JOB_TYPE, priority=0, document=payload(number))


def _order(number: int) -> _Order:
    return _Order(id=uuid7(), customer=f"customer-{number:08}", cents=number, is_paid=False)


def _insert_by_text(session: Session, number: int) -> None:
    values = {"id": uuid7(), "kind": JOB_TYPE, "priority": 0, "document": json.dumps(payload(number))}
    session.execute(_INSERT, values)


_Add = Callable[[Session, int], Any]
"""Adds something to a transaction, given the number of the transaction."""
_Run = Callable[[Place, Stopwatch, int], int]


def _sync(add: _Add) -> _Run:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        engine = place.engine(size=1)

        def transact(number: int) -> None:
            with Session(engine) as session:
                session.add(_order(number))
                add(session, number)
                session.commit()

        for number in range(5):  # connects, compiles the statements, and has the driver prepare them
            transact(-1 - number)
        with _weighed(watch, jobs):
            for number in range(jobs):
                transact(number)
        engine.dispose()
        return jobs

    return run


def _async(add: _Add) -> _Run:
    async def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        engine = place.async_engine(size=1)

        async def transact(number: int) -> None:
            async with AsyncSession(engine) as session:
                session.add(_order(number))
                await session.run_sync(add, number)
                await session.commit()

        for number in range(5):
            await transact(-1 - number)
        with _weighed(watch, jobs):
            for number in range(jobs):
                await transact(number)
        await engine.dispose()
        return jobs

    return lambda place, watch, jobs: asyncio.run(run(place, watch, jobs))


def _at_once(add: Callable[[Session, int], Any]) -> _Run:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        engine = place.engine(size=1)
        with Session(engine) as session:
            for count in (2, jobs):  # the first call of a process compiles its statement
                session.connection()
                with _weighed(watch, jobs) if count == jobs else nullcontext():
                    add(session, count)
                    session.commit()
        engine.dispose()
        return jobs

    return run


@contextmanager
def _weighed(watch: Stopwatch, jobs: int) -> Iterator[None]:
    with watch:
        yield
    watch.figures[_COST] = (watch.client_cpu + watch.server_cpu) * 1e6 / jobs


def _prepare(place: Place, jobs: int) -> None:
    place.clear()
    with place.begin() as connection:
        _Base.metadata.drop_all(connection)
        _Base.metadata.create_all(connection)
