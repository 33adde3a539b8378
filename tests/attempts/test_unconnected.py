"""A handler whose session gets no connection is called again in the same attempt, for a bounded time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue, JobStatus, Worker
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, quick, until, working

pytestmark = pytest.mark.every_python

CALLS = "sa_jobqueue.worker.run.calls"


class Handlers:
    """A sync and an async handler that count their calls, and fail if the session they use does."""

    def __init__(self, **options: Any) -> None:
        self.calls = 0
        self.queue = JobQueue()

        @self.queue.handler("sync", **options)
        def plain(session: Session) -> None:
            self.calls += 1
            session.execute(text("SELECT 1"))

        @self.queue.handler("async", **options)
        async def coroutine(session: AsyncSession) -> None:
            self.calls += 1
            await session.execute(text("SELECT 1"))


@pytest.fixture
def role(engine: Engine) -> Iterator[str]:
    """Give a role that may open no connection."""
    name = f"crowded_{secrets.token_hex(4)}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 0"))
        connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}"))
    yield name
    with engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))


@pytest.mark.slow
@both_servers
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_handler_whose_role_has_no_connection_left_is_called_again_in_the_same_attempt(
    engine: Engine, jobs: Jobs, role: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CALLS}.PAUSES", (0.01,) * 1000)
    handlers = Handlers(max_attempts=1)
    (job_id,) = enqueue(engine, handlers.queue.job(kind))
    url = engine.url.set(username=role, password=None)
    plain, coroutines = create_engine(url), create_async_engine(url)
    factories: dict[str, Any] = (
        {"session_factory": sessionmaker(plain)}
        if kind == "sync"
        else {"async_session_factory": async_sessionmaker(coroutines)}
    )
    async with working(Worker(handlers.queue, engine, options=quick(), **factories)):
        await until(lambda: handlers.calls >= 3, description="it is called again")
        write(engine, f"ALTER ROLE {role} CONNECTION LIMIT 5")
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="it completes")
    plain.dispose()
    await coroutines.dispose()
    assert jobs.get(job_id)["attempt"] == 1
    assert not jobs.attempts(job_id)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_handler_that_waits_in_vain_for_its_pool_fails_after_a_bound(
    engine: Engine, jobs: Jobs, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{CALLS}.PAUSES", (0.01, 0.01))
    handlers = Handlers(max_attempts=1)
    (job_id,) = enqueue(engine, handlers.queue.job(kind))
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.05}
    plain, coroutines = create_engine(engine.url, **options), create_async_engine(engine.url, **options)
    async with coroutines.connect():
        with plain.connect():
            worker = Worker(
                handlers.queue,
                engine,
                options=quick(concurrency=1),
                session_factory=sessionmaker(plain),
                async_session_factory=async_sessionmaker(coroutines),
            )
            await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    plain.dispose()
    await coroutines.dispose()
    assert handlers.calls == 3
    assert jobs.status(job_id) is JobStatus.DEAD
    assert jobs.get(job_id)["last_error"]["type"] == "sqlalchemy.exc.TimeoutError"
    assert sum("its session got no connection" in line for line in caplog.messages) == 2


@pytest.mark.parametrize("used", [True, False])
async def test_an_error_of_the_handlers_own_is_an_ordinary_failure(engine: Engine, jobs: Jobs, used: bool) -> None:
    """Also a connection that was refused elsewhere, and a connection that was lost after the session's first statement."""
    queue, calls = JobQueue(), 0

    @queue.handler("fails", max_attempts=1)
    def fails(session: Session) -> None:
        nonlocal calls
        calls += 1
        if used:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        raise ConnectionRefusedError("elsewhere")

    (job_id,) = enqueue(engine, queue.job("fails"))
    await asyncio.wait_for(Worker(queue, engine, options=quick()).run_until_idle(), PATIENCE)
    assert (calls, jobs.status(job_id)) == (1, JobStatus.DEAD)
