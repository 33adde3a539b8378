"""Of the connections that a worker opens for itself, none is left open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import waiting
from sqlalchemy import Engine, text

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.worker.background.heartbeat import Heartbeat
from tests.fixtures.transactions import scalar
from tests.fixtures.workers import PATIENCE, quick, until

MOMENT = timedelta(seconds=PATIENCE)


class HeldConnections(Connections):
    """Connections of which each is there only when the test releases it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.url, worker_name="tester", patience=timedelta(seconds=15))
        self.release, self.reached = asyncio.Event(), asyncio.Event()
        self.made: list[psycopg.AsyncConnection[Any]] = []

    async def _connected(self, kind: Any, arguments: Any) -> Any:
        connection = await super()._connected(kind, arguments)
        self.made.append(connection)  # not left to the garbage collector, which would warn
        self.reached.set()
        await self.release.wait()
        return connection


@pytest.fixture
async def held(engine: Engine) -> AsyncIterator[HeldConnections]:
    connections_held = HeldConnections(engine)
    yield connections_held
    await connections_held.close(MOMENT)
    for connection in connections_held.made:
        await connection.close()


async def test_a_connection_opened_for_a_cancelled_task_is_closed(held: HeldConnections) -> None:
    asking = asyncio.create_task(held.listen())
    await asyncio.wait_for(held.reached.wait(), PATIENCE)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    held.release.set()
    await until(lambda: held.made[0].closed, description="it is closed")


async def test_a_stopping_worker_awaits_and_closes_connections_being_opened(held: HeldConnections) -> None:
    asking = [asyncio.create_task(held.listen()) for _ in range(2)]
    await until(lambda: len(held.made) == 2, description="both are being opened")
    asking[0].cancel()
    closing = asyncio.create_task(held.close(MOMENT))
    await asyncio.sleep(0)
    held.release.set()
    await asyncio.wait_for(closing, PATIENCE)
    assert [connection.closed for connection in held.made] == [True, True]
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_worker_that_has_stopped_opens_no_more_connections(held: HeldConnections) -> None:
    await held.close(MOMENT)
    with pytest.raises(psycopg.OperationalError, match="the worker has stopped"):
        await held.listen()
    assert held.made == []


@pytest.mark.parametrize("turns", range(8))
async def test_cancelling_while_the_isolation_level_is_set_leaks_no_connection(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(waiting, "MAX_BUSY_TIME", 0.0, raising=False)  # psycopg yields to the loop wherever it may
    connections = Connections(engine.url, worker_name="tester", patience=timedelta(seconds=15))
    listen_engine = connections.engine(1)
    async with listen_engine.connect():
        pass  # is open

    async def use() -> None:
        async with listen_engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            await connection.execute(text("SELECT 1"))

    using = asyncio.create_task(use())
    for _ in range(turns):
        await asyncio.sleep(0)
    using.cancel()
    (ended,) = await asyncio.gather(using, return_exceptions=True)  # kept: the error would keep what was lost
    assert (isinstance(ended, asyncio.CancelledError), listen_engine.pool.checkedout()) == (True, 0)  # type: ignore[attr-defined]
    await listen_engine.dispose()
    await connections.close(MOMENT)


def _worker(engine: Engine) -> Worker:
    queue = JobQueue()
    queue.handler("one")(lambda: None)
    return Worker(queue, engine, options=quick())


def _of_workers(engine: Engine) -> int:
    """Return how many connections of workers there are."""
    with engine.connect() as connection:
        statement = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'sa_jobqueue%'"
        )
        return int(connection.execute(text(statement)).scalar_one())


async def test_a_worker_cancelled_during_its_first_heartbeat_leaves_no_row(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating, release = threading.Event(), threading.Event()
    start = Heartbeat.start

    def held(heartbeat: Heartbeat) -> None:
        start(heartbeat)
        beating.set()
        assert release.wait(PATIENCE)

    monkeypatch.setattr(Heartbeat, "start", held)
    starting = asyncio.create_task(_worker(engine).run())
    assert await asyncio.to_thread(beating.wait, PATIENCE)
    starting.cancel()
    await asyncio.sleep(0)
    release.set()
    (ended,) = await asyncio.gather(starting, return_exceptions=True)
    registered = scalar(engine, "SELECT count(*) FROM worker")
    assert (isinstance(ended, asyncio.CancelledError), registered) == (True, 0)
    await until(lambda: _of_workers(engine) == 0, description="its connections are closed")
