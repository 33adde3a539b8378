"""Rows that a handler writes through its session commit if and only if its completion commits."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue, JobStatus, cancel_jobs
from sa_jobqueue.events import AttemptLost, JobCompleted
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import drain

pytestmark = [pytest.mark.slow, both_servers]
WRITE = text("INSERT INTO effect VALUES (:job)")


@pytest.fixture(autouse=True)
def _table(engine: Engine) -> None:
    write(engine, "CREATE TABLE effect (job text UNIQUE DEFERRABLE INITIALLY DEFERRED)")


def effects(engine: Engine) -> int:
    """Count what handlers wrote and committed."""
    with engine.connect() as connection:
        count: int = connection.execute(text("SELECT count(*) FROM effect")).scalar_one()
        return count


def sync_and_async_queue(engine: Engine, act: Any, **options: Any) -> JobQueue[Any]:
    """Return a queue with the same handler, sync and async: it writes, then does what `act(ctx)` does."""
    queue = JobQueue()

    @queue.handler("sync", **options)
    def synchronous(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
        assert not session.in_transaction()  # nothing is begun before the handler's first statement
        session.execute(WRITE, {"job": payload.get("key", str(ctx.job.id))})
        act(session, ctx)

    @queue.handler("async", **options)
    async def asynchronous(payload: dict[str, Any], session: AsyncSession, ctx: AttemptContext) -> None:
        assert not session.in_transaction()
        await session.execute(WRITE, {"job": payload.get("key", str(ctx.job.id))})
        await session.run_sync(act, ctx)

    return queue


both_modes = pytest.mark.parametrize("mode", ["sync", "async"])


@both_modes
async def test_effects_and_completion_are_one_commit(engine: Engine, jobs: Jobs, mode: str) -> None:
    queue = sync_and_async_queue(engine, lambda session, ctx: None)
    (job_id,) = enqueue(engine, queue.job(mode, {}))
    log = await drain(queue, engine)
    assert (jobs.status(job_id), effects(engine)) == (JobStatus.COMPLETED, 1)
    assert len(log.of(JobCompleted)) == 1
    with engine.connect() as connection:
        transaction_id = connection.execute(text("SELECT xmin::text FROM effect")).scalar_one()
        completed = connection.execute(text("SELECT xmin::text FROM job")).scalar_one()
    assert transaction_id == completed  # the same transaction wrote both


@both_modes
async def test_a_failure_rolls_back_the_handlers_writes(engine: Engine, jobs: Jobs, mode: str) -> None:
    def fail(session: Any, ctx: AttemptContext) -> None:
        raise ValueError

    queue = sync_and_async_queue(engine, fail, max_attempts=1)
    (job_id,) = enqueue(engine, queue.job(mode, {}))
    await drain(queue, engine)
    assert (jobs.status(job_id), effects(engine)) == (JobStatus.DEAD, 0)


@both_modes
async def test_a_failing_commit_fails_the_attempt(engine: Engine, jobs: Jobs, mode: str) -> None:
    queue = sync_and_async_queue(engine, lambda session, ctx: None, max_attempts=1)
    # The constraint is checked at the commit, after the completion was written in the same transaction.
    first, second = enqueue(engine, queue.job(mode, {"key": "same"}), queue.job(mode, {"key": "same"}))
    await drain(queue, engine, concurrency=1)
    assert sorted([jobs.status(first), jobs.status(second)]) == [JobStatus.COMPLETED, JobStatus.DEAD]
    assert effects(engine) == 1
    (dead_letter,) = jobs.dead_letters()
    assert "UniqueViolation" in dead_letter["error"]["message"]


@both_modes
async def test_an_attempt_lost_while_running_rolls_back_its_writes(engine: Engine, jobs: Jobs, mode: str) -> None:
    def lose(session: Any, ctx: AttemptContext) -> None:
        call(engine, cancel_jobs, [ctx.job.id])

    queue = sync_and_async_queue(engine, lose)
    (job_id,) = enqueue(engine, queue.job(mode, {}))
    log = await drain(queue, engine)
    assert (jobs.status(job_id), effects(engine)) == (JobStatus.CANCELLED, 0)
    assert len(log.of(AttemptLost)) == 1
    assert log.of(JobCompleted) == []


@both_modes
async def test_a_handler_must_not_commit_its_session(engine: Engine, jobs: Jobs, mode: str) -> None:
    queue = sync_and_async_queue(engine, lambda session, ctx: session.commit(), max_attempts=1)
    (job_id,) = enqueue(engine, queue.job(mode, {}))
    await drain(queue, engine)
    assert (jobs.status(job_id), effects(engine)) == (JobStatus.DEAD, 0)
    message = jobs.dead_letters(job_id)[0]["error"]["message"]
    assert "must not commit a session of the worker" in message


@both_modes
async def test_jobs_enqueued_by_a_handler_commit_only_with_its_completion(engine: Engine, jobs: Jobs, mode: str) -> None:
    def spawn(session: Any, ctx: AttemptContext) -> None:
        if ctx.job.input.get("parent"):
            session.add(queue.job(mode, {}))
            if ctx.job.input["parent"] == "fails":
                raise ValueError

    queue = sync_and_async_queue(engine, spawn, max_attempts=1)
    enqueue(engine, queue.job(mode, {"parent": "works"}), queue.job(mode, {"parent": "fails"}))
    await drain(queue, engine)
    assert sorted(jobs.statuses().values()) == [JobStatus.COMPLETED, JobStatus.COMPLETED, JobStatus.DEAD]
