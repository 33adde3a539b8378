"""A statement that bypasses SQLAlchemy returns the same as one that does not, and fails in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, bindparam, event, func, select, text
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sa_jobqueue import Job
from sa_jobqueue.db.compiled import Compiled, compiled
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.statements import claims
from tests.fixtures.workers import until

PID = select(func.pg_backend_pid(), bindparam("one", type_=Integer))
DIVIDED = select(func.div(1, bindparam("one", type_=Integer)))
ASLEEP = select(func.pg_sleep(bindparam("one", type_=Integer)))


@pytest.fixture
async def own(engine: Engine) -> AsyncIterator[AsyncEngine]:
    """Return an engine as a worker's parts have it."""
    connections = Connections(engine.url, worker_name="here", patience=timedelta(seconds=15))
    steps_engine = connections.engine(3)
    yield steps_engine
    await steps_engine.dispose()
    await connections.close(timedelta(seconds=1))


def _listen(engine: AsyncEngine) -> list[str]:
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_arguments: Any) -> None:
        statements.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    return statements


def _end(engine: Engine, pids: list[int]) -> None:
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pid, 5000) FROM unnest(:pids) AS pid"), {"pids": pids})


async def _pid(statement: Compiled, connection: AsyncConnection) -> int:
    ((pid, _),) = await statement.execute(connection, {"one": 1})
    return int(pid)


@pytest.mark.parametrize("observed", [False, True])
async def test_a_server_error_is_raised_as_sqlalchemys_and_the_connection_survives(own: AsyncEngine, observed: bool) -> None:
    if observed:
        _listen(own)
    async with own.connect() as connection:
        pid = await _pid(Compiled(PID), connection)
        with pytest.raises(DataError, match="division by zero") as caught:
            await Compiled(DIVIDED).execute(connection, {"one": 0})
        assert not caught.value.connection_invalidated
        assert await _pid(Compiled(PID), connection) == pid


@pytest.mark.parametrize("observed", [False, True])
async def test_a_lost_connection_invalidates_its_whole_pool_once(engine: Engine, own: AsyncEngine, observed: bool) -> None:
    if observed:
        _listen(own)
    statement = Compiled(PID)
    async with own.connect() as first:
        async with own.connect() as second:
            pids = [await _pid(statement, first), await _pid(statement, second)]
        _end(engine, pids)
        with pytest.raises(OperationalError, match="terminating connection") as caught:
            await statement.execute(first, {"one": 1})
        assert caught.value.connection_invalidated
        await first.rollback()
        assert await _pid(statement, first) not in pids, "opened again, as SQLAlchemy does"
        async with own.connect() as second:
            assert await _pid(statement, second) not in pids, "no other connection has to fail"


@pytest.mark.parametrize("observed", [False, True])
async def test_a_cancelled_statement_leaves_no_result_for_the_next(engine: Engine, own: AsyncEngine, observed: bool) -> None:
    if observed:
        _listen(own)
    async with own.connect() as connection:
        pid = await _pid(Compiled(PID), connection)

        def is_asleep() -> bool:
            with engine.connect() as connection:
                at = text("SELECT query LIKE '%pg_sleep%' AND state = 'active' FROM pg_stat_activity WHERE pid = :pid")
                return bool(connection.scalar(at, {"pid": pid}))

        sleeping = asyncio.create_task(Compiled(ASLEEP).execute(connection, {"one": 60}))
        await until(is_asleep, description="the server at work")
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        assert connection.invalidated
        await connection.rollback()
        assert await _pid(Compiled(PID), connection) != pid


def test_a_process_compiles_each_statement_once() -> None:
    bare = compiled(claims.candidates, Job, inputs=False)
    assert compiled(claims.candidates, Job, inputs=False) is bare
    assert compiled(claims.candidates, Job, inputs=True) is not bare


async def test_a_compiled_statement_joins_sqlalchemys_autobegin_transaction(engine: Engine) -> None:
    async_engine = create_async_engine(engine.url)
    async with async_engine.connect() as connection:
        await Compiled(PID).execute(connection, {"one": 1})
        assert connection.in_transaction()
    await async_engine.dispose()
