"""Steps beside the session of their handler: pools have room for both, and a step never waits for its own handler."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus
from sa_jobqueue.cli.worker import _engine
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import drain, quick

pytestmark = pytest.mark.every_python

HOUR = timedelta(hours=1)


def locking_queue(sent: list[str]) -> JobQueue[Any]:
    """Return handlers that lock a row in one session, and need it in a step."""
    queue: JobQueue[Any] = JobQueue()

    def send() -> None:
        sent.append("step")

    async def send_async() -> None:
        sent.append("step")

    @queue.handler("sync_step", max_attempts=1)
    def sync_step(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.get(Job, ctx.job.id, with_for_update=True)
        ctx.step("send", send)

    @queue.handler("async_step", max_attempts=1)
    async def async_step(payload: None, session: AsyncSession, ctx: AttemptContext) -> None:
        await session.get(Job, ctx.job.id, with_for_update=True)
        await ctx.step("send", send_async)

    @queue.handler("wait", max_attempts=1)
    def wait(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.get(Job, ctx.job.id, with_for_update=True)
        ctx.wait_for("send", event="sent", timeout=HOUR)

    @queue.handler("caught", max_attempts=1)
    def caught(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.get(Job, ctx.job.id, with_for_update=True)
        for name in ("send", "again"):
            try:
                ctx.step(name, send, catch=Exception)
            except Exception as error:
                sent.append(type(error).__name__)

    @queue.handler("sync_transaction", max_attempts=1)
    def sync_transaction(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.execute(text("UPDATE account SET balance = balance + 1"))
        with ctx.transaction("send") as own_session:
            assert own_session is not None
            own_session.execute(text("UPDATE account SET balance = balance + 1"))

    @queue.handler("async_transaction", max_attempts=1)
    async def async_transaction(payload: None, session: AsyncSession, ctx: AttemptContext) -> None:
        await session.execute(text("UPDATE account SET balance = balance + 1"))
        async with ctx.transaction("send") as own_session:
            assert own_session is not None
            await own_session.execute(text("UPDATE account SET balance = balance + 1"))

    @queue.handler("nested", max_attempts=1)
    def nested(payload: None, ctx: AttemptContext) -> None:
        with ctx.transaction("outer") as session:
            assert session is not None
            session.get(Job, ctx.job.id, with_for_update=True)
            ctx.step("send", send)

    return queue


@pytest.mark.parametrize(
    "type_name", ["sync_step", "async_step", "wait", "caught", "sync_transaction", "async_transaction", "nested"]
)
async def test_a_step_that_waits_for_its_handlers_session_fails_and_names_both(
    engine: Engine, jobs: Jobs, type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.run.own_locks._LOOK_AFTER", 0.05)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (balance int)"))
        connection.execute(text("INSERT INTO account VALUES (0)"))
    sent: list[str] = []
    queue = locking_queue(sent)
    try:
        (job_id,) = enqueue(engine, queue.job(type_name, None))
        await drain(queue, engine)
        row = jobs.get(job_id)
        assert row["status"] is JobStatus.DEAD
        assert row["last_error"]["type"].endswith("StepBlockedError")
        assert "step 'send'" in row["last_error"]["message"]
        assert f"sa_jobqueue job {job_id}" in row["last_error"]["message"]
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT balance FROM account")) == 0
            assert connection.scalar(text("SELECT count(*) FROM job_step")) == 0
        if type_name == "caught":  # it cannot be declared as a result, and no step begins after it
            assert sent == ["step", "StepBlockedError", "StepRefusedError"]
    finally:
        write(engine, "DROP TABLE account")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_pool_without_a_connection_for_a_transaction_beside_each_session_is_refused(
    engine: Engine, jobs: Jobs, is_async: bool
) -> None:
    queue: JobQueue[Any] = JobQueue()
    make: Any = create_async_engine if is_async else create_engine

    @queue.handler("sync", max_attempts=1)
    def sync(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.execute(text("SELECT 1"))
        with ctx.transaction("charge") as own_session:
            assert own_session is not None
            own_session.execute(text("SELECT 1"))

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: None, session: AsyncSession, ctx: AttemptContext) -> None:
        await session.execute(text("SELECT 1"))
        async with ctx.transaction("charge") as own_session:
            assert own_session is not None
            await own_session.execute(text("SELECT 1"))

    (job_id,) = enqueue(engine, queue.job("async" if is_async else "sync", None))
    small = make(engine.url, pool_size=1, max_overflow=1)
    await drain(queue, small, concurrency=2)
    assert jobs.status(job_id) is JobStatus.DEAD
    assert jobs.get(job_id)["last_error"]["message"].startswith(
        "engine: its pool holds 2 connections: 2 handlers with a session may run at once, and `ctx.transaction` needs "
        "another. Raise pool_size to 3 or more"
    )
    (job_id,) = enqueue(engine, queue.job("async" if is_async else "sync", None))
    await drain(queue, small, concurrency=1)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    await small.dispose() if is_async else small.dispose()


async def test_handlers_of_the_command_have_a_connection_for_a_transaction_beside_their_session(
    database_url: str, engine: Engine, jobs: Jobs
) -> None:
    queue: JobQueue[Any] = JobQueue()
    all_begun = threading.Barrier(2, timeout=30)

    @queue.handler("charge", max_attempts=1)
    def charge(payload: None, session: Session, ctx: AttemptContext) -> Any:
        session.execute(text("SELECT 1"))
        all_begun.wait()
        with ctx.transaction("charge") as own_session:
            assert own_session is not None
            all_begun.wait()  # both have two connections
            return own_session.scalar(text("SELECT 1"))

    ids = enqueue(engine, *(queue.job("charge", None) for _ in range(2)))
    options = quick(concurrency=2)
    command_engine = _engine(database_url, options)
    try:
        await drain(queue, command_engine, concurrency=2)
    finally:
        command_engine.dispose()
    assert [jobs.status(job_id) for job_id in ids] == [JobStatus.COMPLETED] * 2
