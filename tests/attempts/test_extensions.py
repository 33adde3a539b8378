"""`ctx.extend` writes the job's row, which the transaction of a session with an older snapshot cannot complete any more."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from psycopg import IsolationLevel
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus
from sa_jobqueue.errors import InvalidOptionError
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import scalar
from tests.fixtures.workers import PATIENCE, drain, wait_until

pytestmark = pytest.mark.every_python

MINUTE: Final = timedelta(minutes=1)
LEVELS: Final = ("REPEATABLE READ", "SERIALIZABLE")
DRIVERS: Final = ("sync", "psycopg", "asyncpg")
Act = Callable[[Session, AttemptContext], None]


@asynccontextmanager
async def factories(engine: Engine, driver: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
    """Give the worker's session factory of a driver, on an engine with these options."""
    if driver == "sync":
        sync_engine = create_engine(engine.url, **options)
        yield {"session_factory": sessionmaker(sync_engine)}
        sync_engine.dispose()
    else:
        async_engine = create_async_engine(engine.url.set(drivername=f"postgresql+{driver}"), **options)
        yield {"async_session_factory": async_sessionmaker(async_engine)}
        await async_engine.dispose()


def handlers(driver: str, act: Act) -> JobQueue[Any]:
    """Return two handlers that call `act` with a session: that of their argument, and that of `ctx.transaction`."""
    queue: JobQueue[Any] = JobQueue()
    options: Any = {"max_attempts": 1, "timeout": MINUTE}
    if driver == "sync":

        @queue.handler("session", **options)
        def with_session(payload: None, session: Session, ctx: AttemptContext) -> None:
            act(session, ctx)

        @queue.handler("transaction", **options)
        def with_transaction(payload: None, ctx: AttemptContext) -> None:
            with ctx.transaction("t") as session:
                assert session is not None
                act(session, ctx)
    else:

        @queue.handler("session", **options)
        async def with_async_session(payload: None, session: AsyncSession, ctx: AttemptContext) -> None:
            await session.run_sync(act, ctx)

        @queue.handler("transaction", **options)
        async def with_async_transaction(payload: None, ctx: AttemptContext) -> None:
            async with ctx.transaction("t") as session:
                assert session is not None
                await session.run_sync(act, ctx)

    return queue


def _lease(engine: Engine, job_id: Any) -> Any:
    job = Job.__table__
    return scalar(engine, select(job.c.leased_until - job.c.started_at).where(job.c.id == job_id))


def _engine_option(level: str) -> tuple[dict[str, Any], Callable[[Session], object]]:
    return {"isolation_level": level}, lambda session: None


def _connection_option(level: str) -> tuple[dict[str, Any], Callable[[Session], object]]:
    return {}, lambda session: session.connection(execution_options={"isolation_level": level})


def _server_default(level: str) -> tuple[dict[str, Any], Callable[[Session], object]]:
    return {"connect_args": {"options": f"-c default_transaction_isolation={level.lower()}".replace(" r", r"\ r")}}, (
        lambda session: None
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("way", [_engine_option, _connection_option, _server_default])
async def test_extend_is_refused_while_a_transaction_reads_a_snapshot(
    engine: Engine, jobs: Jobs, driver: str, level: str, way: Callable[[str], Any]
) -> None:
    options, begin = way(level)
    if driver == "asyncpg" and "connect_args" in options:
        options = {"connect_args": {"server_settings": {"default_transaction_isolation": level.lower()}}}

    def refused(session: Session, ctx: AttemptContext) -> None:
        begin(session)
        assert session.scalar(text("SELECT upper(current_setting('transaction_isolation'))")) == level
        ctx.extend(2 * MINUTE)

    def caught(session: Session, ctx: AttemptContext) -> None:
        with pytest.raises(InvalidOptionError, match="must be READ COMMITTED"):
            refused(session, ctx)

    for act, status in ((refused, JobStatus.DEAD), (caught, JobStatus.COMPLETED)):
        queue = handlers(driver, act)
        ids = enqueue(engine, queue.job("session", None), queue.job("transaction", None))
        async with factories(engine, driver, **options) as made:
            await drain(queue, engine, concurrency=1, factories=made)
        assert [jobs.status(job_id) for job_id in ids] == [status] * 2
        for job_id in ids if act is refused else ():
            (letter,) = jobs.dead_letters(job_id)
            assert letter["error"]["type"].endswith("InvalidOptionError")
            assert f"got {level}: `extend` writes the job's row" in letter["error"]["message"]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_snapshot_waits_for_an_extension_that_is_being_written(engine: Engine, jobs: Jobs, driver: str) -> None:
    """Another session holds the job's row until the extension waits for it, and the handler is about to begin."""
    releasing: list[threading.Thread] = []

    def act(session: Session, ctx: AttemptContext) -> None:
        holder = engine.connect()
        holder.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": ctx.job.id})
        is_sent = threading.Event()

        def release() -> None:
            assert is_sent.wait(PATIENCE)
            until_locks_are_waited_for(engine, 1)
            holder.close()

        releasing.append(threading.Thread(target=release))
        releasing[-1].start()
        ctx.extend(10 * MINUTE)
        is_sent.set()
        session.execute(text("SELECT 1"))
        if driver == "sync":  # an async handler would block the loop that writes it
            wait_until(lambda: _lease(engine, ctx.job.id) > 10 * MINUTE, description="the extension")

    queue = handlers(driver, act)
    ids = enqueue(engine, queue.job("session", None), queue.job("transaction", None))
    async with factories(engine, driver, isolation_level="REPEATABLE READ") as made:
        await drain(queue, engine, concurrency=1, factories=made)
    for thread in releasing:
        thread.join(PATIENCE)
    assert [(jobs.status(job_id), jobs.get(job_id)["attempt"]) for job_id in ids] == [(JobStatus.COMPLETED, 1)] * 2


async def test_the_level_of_the_drivers_connection_counts(engine: Engine, jobs: Jobs) -> None:
    def act(session: Session, ctx: AttemptContext) -> None:
        session.execute(text("SELECT 1"))
        ctx.extend(MINUTE)

    queue = handlers("sync", act)
    ids = enqueue(engine, queue.job("session", None), queue.job("transaction", None))
    async with factories(engine, "sync") as made:

        @event.listens_for(made["session_factory"].kw["bind"], "connect")
        def serializable(connection: Any, record: Any) -> None:
            connection.isolation_level = IsolationLevel.SERIALIZABLE

        await drain(queue, engine, concurrency=1, factories=made)
    messages = [jobs.dead_letters(job_id)[0]["error"]["message"] for job_id in ids]
    assert all("got SERIALIZABLE: `extend` writes" in message for message in messages)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_level_that_a_statement_sets_fails_the_completion_with_the_same_reason(
    engine: Engine, jobs: Jobs, level: str
) -> None:
    def act(session: Session, ctx: AttemptContext) -> None:
        session.execute(text(f"SET TRANSACTION ISOLATION LEVEL {level}"))
        session.execute(text("SELECT 1"))
        ctx.extend(10 * MINUTE)
        wait_until(lambda: _lease(engine, ctx.job.id) > 10 * MINUTE, description="the extension")

    queue = handlers("sync", act)
    ids = enqueue(engine, queue.job("session", None), queue.job("transaction", None))
    await drain(queue, engine, concurrency=1)
    for job_id in ids:
        (letter,) = jobs.dead_letters(job_id)
        assert letter["error"]["type"].endswith("InvalidOptionError")
        assert "got one whose snapshot is older than the job's row: `extend` writes" in letter["error"]["message"]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_extend_works_in_any_transaction_at_read_committed_and_between_transactions(
    engine: Engine, jobs: Jobs, driver: str
) -> None:
    def act(session: Session, ctx: AttemptContext) -> None:
        session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
        session.rollback()
        ctx.extend(MINUTE)
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})
        session.execute(text("SELECT 1"))
        ctx.extend(10 * MINUTE)

    queue = handlers(driver, act)
    ids = enqueue(engine, queue.job("session", None), queue.job("transaction", None))
    async with factories(engine, driver) as made:
        await drain(queue, engine, concurrency=1, factories=made)
    assert [jobs.status(job_id) for job_id in ids] == [JobStatus.COMPLETED] * 2
