"""A handler that writes one row through its session, beside the same writes as a bare transaction of the application."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sqlalchemy import BigInteger, Identity, Text, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, Session, mapped_column

from benchmarks import rows, workers
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import JobQueue

_BARE: Final = "bare transaction"
_CONCURRENCY: Final = 16
_MOST: Final = 5_000


class Effect(rows.PlainBase):
    """A row that the handler writes."""

    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    order_id: Mapped[str] = mapped_column(Text)


class Mark(rows.PlainBase):
    """The row that the bare transaction updates where the handler's completes its job."""

    __tablename__ = "mark"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    state: Mapped[str] = mapped_column(Text)


def scenario() -> Scenario:
    """Return the cases."""
    limit = Comparison(case=_BARE)
    return Scenario(
        name="session handler",
        says=f"one INSERT through the handler's session, committed with the completion; {_CONCURRENCY} at once",
        cases=(
            Case(name=_BARE, run=_bare, prepare=_prepare, most=_MOST),
            Case(name="async handler with AsyncSession", run=_asynchronous, prepare=_prepare, against=limit, most=_MOST),
            Case(name="the same, writing nothing", run=_nothing, prepare=_prepare, against=limit, most=_MOST),
            Case(name="sync handler with Session", run=_synchronous, prepare=_prepare, against=limit, most=_MOST),
        ),
    )


def _prepare(place: Place, jobs: int) -> None:
    rows.fill(place, jobs)
    with place.begin() as connection:
        rows.PlainBase.metadata.drop_all(connection)
        rows.PlainBase.metadata.create_all(connection)
        connection.execute(insert(Mark), [{"id": number, "state": "running"} for number in range(jobs)])


def _asynchronous(place: Place, watch: Stopwatch, jobs: int) -> int:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def handle(order: Any, session: AsyncSession) -> None:
        session.add(Effect(order_id=order["order_id"]))

    return workers.drain(place, watch, jobs, queue, concurrency=_CONCURRENCY)


def _nothing(place: Place, watch: Stopwatch, jobs: int) -> int:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def handle(order: Any, session: AsyncSession) -> None:
        return None

    return workers.drain(place, watch, jobs, queue, concurrency=_CONCURRENCY)


def _synchronous(place: Place, watch: Stopwatch, jobs: int) -> int:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    def handle(order: Any, session: Session) -> None:
        session.add(Effect(order_id=order["order_id"]))

    return workers.drain(place, watch, jobs, queue, concurrency=_CONCURRENCY)


def _bare(place: Place, watch: Stopwatch, jobs: int) -> int:
    asyncio.run(_transactions(place, watch, jobs))
    return jobs


async def _transactions(place: Place, watch: Stopwatch, jobs: int) -> None:
    engine = place.async_engine(size=_CONCURRENCY)
    numbers = iter(range(jobs))
    async with engine.connect():  # what a worker has done, too, when its time begins
        pass
    with watch:
        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENCY):
                group.create_task(_work(engine, numbers))
    await engine.dispose()


async def _work(engine: AsyncEngine, numbers: Any) -> None:
    for number in numbers:
        async with AsyncSession(engine) as session:
            session.add(Effect(order_id=f"order-{number:08}"))
            complete_mark = update(Mark).where(Mark.id == number, Mark.state == "running").values(state="completed")
            await session.execute(complete_mark.returning(Mark.id))
            await session.commit()
