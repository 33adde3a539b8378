"""A step of a job, beside an INSERT and a COMMIT by hand: one after the other, on open connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from sqlalchemy import BigInteger, Identity, Text, insert
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from benchmarks import rows, systems
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import environments, places, running
from benchmarks.peers.catalogue import STEPPERS, System
from benchmarks.place import Place
from sa_jobqueue import AttemptContext, JobQueue, Worker

_BY_HAND: Final = "INSERT and COMMIT by hand"
_SESSION: Final = "a Session with a row, and a second INSERT by hand"
_MOST: Final = 2_000


class Noted(rows.PlainBase):
    """A row written by hand, as wide as a step."""

    __tablename__ = "noted"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    output: Mapped[Any] = mapped_column(JSONB)


def scenario() -> Scenario:
    """Return the cases."""
    by_hand, session = Comparison(case=_BY_HAND), Comparison(case=_SESSION)
    return Scenario(
        name="steps",
        says="steps of one job, one after the other; by hand the same rows, on one connection",
        cases=(
            Case(name=_BY_HAND, run=_insert, prepare=_prepare, most=_MOST),
            Case(name="ctx.step", run=_step, prepare=_prepare, against=by_hand, most=_MOST),
            Case(name=_SESSION, run=_with_session, prepare=_prepare, most=_MOST),
            Case(name="ctx.transaction with a row", run=_transaction, prepare=_prepare, against=session, most=_MOST),
            *(
                Case(
                    name=f"{system.name}, {environments.release(system)}",
                    run=partial(_of_peer, system),
                    prepare=lambda place, jobs: None,
                    open_place=partial(places.open_for, system),
                    against=Comparison(case="ctx.step"),
                    most=_MOST,
                )
                for system in STEPPERS
                if environments.is_installed(system)
            ),
        ),
    )


def _prepare(place: Place, jobs: int) -> None:
    rows.fill(place, 1)
    with place.begin() as connection:
        rows.PlainBase.metadata.drop_all(connection)
        rows.PlainBase.metadata.create_all(connection)


def _row(number: int) -> dict[str, Any]:
    return {"name": f"row {number}", "output": {"number": number}}


def _insert(place: Place, watch: Stopwatch, jobs: int) -> int:
    async def work() -> None:
        engine = place.async_engine(size=1)
        async with engine.connect():  # opened before the time begins
            pass
        with watch:
            for number in range(jobs):
                async with engine.begin() as connection:
                    await connection.execute(insert(Noted), _row(number))
        await engine.dispose()

    asyncio.run(work())
    return jobs


def _with_session(place: Place, watch: Stopwatch, jobs: int) -> int:
    async def work() -> None:
        engine = place.async_engine(size=1)
        async with engine.connect():
            pass
        with watch:
            for number in range(jobs):
                async with AsyncSession(engine) as session:
                    session.add(Noted(**_row(number)))
                    await session.flush()
                    await session.execute(insert(Noted.__table__).values(_row(number)))  # type: ignore[arg-type]
                    await session.commit()
        await engine.dispose()

    asyncio.run(work())
    return jobs


def _step(place: Place, watch: Stopwatch, jobs: int) -> int:
    async def result(number: int) -> dict[str, int]:
        return {"number": number}

    async def one(ctx: AttemptContext, number: int) -> None:
        await ctx.step("row", result, number, key=number)

    return _handled(place, watch, jobs, one)


def _of_peer(system: System, place: Place, watch: Stopwatch, jobs: int) -> int:
    with running.start(system, place, do="steps", jobs=jobs) as process:
        process.expect("ready")
        process.send("go")
        systems.clock(watch, [process])
        process.expect("gone")
    return jobs


def _transaction(place: Place, watch: Stopwatch, jobs: int) -> int:
    async def one(ctx: AttemptContext, number: int) -> None:
        async with ctx.transaction("row", key=number) as session:
            if session is not None:
                session.add(Noted(**_row(number)))

    return _handled(place, watch, jobs, one)


def _handled(place: Place, watch: Stopwatch, jobs: int, run_step: Callable[[AttemptContext, int], Awaitable[None]]) -> int:
    """Run one job with so many steps; the time begins when the first is recorded, which opens the connection."""
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def handle(order: Any, ctx: AttemptContext) -> None:
        await run_step(ctx, -1)
        with watch:
            for number in range(jobs):
                await run_step(ctx, number)

    async def work() -> None:
        engine = place.async_engine(size=2)
        await Worker(queue, engine).run_until_idle()
        await engine.dispose()

    asyncio.run(work())
    return jobs
