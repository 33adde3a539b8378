"""Of the connections that a worker opens for itself, none is left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from sa_jobqueue.db.connections import Connections
from tests.fixtures.workers import PATIENCE, until

MOMENT = timedelta(seconds=PATIENCE)


class Held(Connections):
    """Connections of which each is there only when the test lets it go on."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.url, worker_name="tester", patience=timedelta(seconds=15))
        self.go_on, self.reached = asyncio.Event(), asyncio.Event()
        self.made: list[psycopg.AsyncConnection[Any]] = []

    async def _connected(self, kind: Any, arguments: Any) -> Any:
        connection = await super()._connected(kind, arguments)
        self.made.append(connection)  # not left to the garbage collector, which would warn
        self.reached.set()
        await self.go_on.wait()
        return connection


@pytest.fixture
async def held(engine: Engine) -> AsyncIterator[Held]:
    made = Held(engine)
    yield made
    await made.close(MOMENT)
    for connection in made.made:
        await connection.close()


async def test_a_connection_is_closed_when_what_asked_for_it_was_cancelled_meanwhile(held: Held) -> None:
    asking = asyncio.create_task(held.listen())
    await asyncio.wait_for(held.reached.wait(), PATIENCE)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    held.go_on.set()
    await until(lambda: held.made[0].closed, what="it is closed")


async def test_a_stopping_worker_waits_for_the_connections_that_are_being_opened_and_closes_them(held: Held) -> None:
    asking = [asyncio.create_task(held.listen()) for _ in range(2)]
    await until(lambda: len(held.made) == 2, what="both are being opened")
    asking[0].cancel()
    closing = asyncio.create_task(held.close(MOMENT))
    await asyncio.sleep(0)
    held.go_on.set()
    await asyncio.wait_for(closing, PATIENCE)
    assert [one.closed for one in held.made] == [True, True]
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_worker_that_has_stopped_opens_no_more_connections(held: Held) -> None:
    await held.close(MOMENT)
    with pytest.raises(psycopg.OperationalError, match="the worker has stopped"):
        await held.listen()
    assert held.made == []
