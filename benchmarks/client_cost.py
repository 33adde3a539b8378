"""The client's cost of a claim that finds nothing, by SQLAlchemy and by psycopg alone, and of a worker's start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median
from typing import Any, Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks import rows
from benchmarks.place import Place, open_place
from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.db.compiled import Compiled
from sa_jobqueue.statements import claims
from sa_jobqueue.testing.servers import PostgresServer
from sa_jobqueue.worker.claim.cursors import START, Cursors, Lane, Plan, Segment

_WARM: Final = 20
_STARTS: Final = 3
_ROUNDS: Final = 5

_Claim = Callable[[], Awaitable[Any]]


def measure(server: PostgresServer, count: int) -> dict[str, list[float]]:
    """Make so many empty claims of each kind, and start workers; return CPU time of this process.

    Shape: by name, microseconds a claim, the median of five rounds, or milliseconds of each worker's start in its
    order: the first compiles the statements, the others find them.
    """
    with open_place(server) as place:
        rows.fill(place, 0)
        return asyncio.run(_measured(place, count))


async def _measured(place: Place, count: int) -> dict[str, list[float]]:
    found = {"worker's start, ms": [await _start(place) for _ in range(_STARTS)]}
    engine = place.async_engine(size=1).execution_options(isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        ways = _ways(connection)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(_ROUNDS):  # in turn, so that whatever else the machine does is everybody's
            for name, claim in ways.items():
                taken[name].append(await _each(claim, -(-count // _ROUNDS)))
    await engine.dispose()
    return found | {name: [median(times)] for name, times in taken.items()}


def _ways(connection: AsyncConnection) -> dict[str, _Claim]:
    statement = claims.claim(Job)
    sent = Compiled(statement)
    cursors = Cursors((), UUID(int=0))
    lanes = [Lane("default", "", priority) for priority in range(9, -10, -1)]
    for lane in lanes:
        cursors.lower(lane, START)
    plan = Plan([Segment(lanes, 100, [rows.JOB_TYPE])], {}, 100)
    given: dict[str, Any] = {"worker_id": "bench:1", "grace": timedelta(seconds=10), **cursors.parameters(plan)}

    async def through_sqlalchemy() -> Any:
        return (await connection.execute(statement, given)).all()

    async def to_psycopg() -> Any:
        return await sent.execute(connection, given)

    return {"claim, through SQLAlchemy, us": through_sqlalchemy, "claim, to psycopg, us": to_psycopg}


async def _each(claim: _Claim, count: int) -> float:
    for _ in range(_WARM):
        await claim()
    began = time.process_time()
    for _ in range(count):
        await claim()
    return (time.process_time() - began) / count * 1e6


async def _start(place: Place) -> float:
    """Return the milliseconds from making a worker until it has found its queue empty."""
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def handle(order: Any) -> None:
        return None

    engine = place.async_engine(size=10)
    began = time.process_time()
    await Worker(queue, engine, options=WorkerOptions(concurrency=10)).run_until_idle()
    took = (time.process_time() - began) * 1e3
    await engine.dispose()
    return took
