"""Side effects that a handler registers on its session follow its completion's commit, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue, JobStatus, cancel_jobs
from sa_jobqueue.operations import after_commit
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain

pytestmark = pytest.mark.every_python


def sync_and_async_queue(act: Any) -> JobQueue[Any]:
    """Return a queue with the same handler, sync and async: it does what `act(session, ctx)` does."""
    queue = JobQueue()

    @queue.handler("sync", max_attempts=1)
    def synchronous(payload: Any, session: Session, ctx: AttemptContext) -> None:
        act(session, ctx)

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: Any, session: AsyncSession, ctx: AttemptContext) -> None:
        act(session, ctx)

    return queue


async def test_after_commit_callbacks_run_after_the_completions_commit(engine: Engine, jobs: Jobs) -> None:
    calls: list[tuple[str, JobStatus]] = []

    def act(session: Any, ctx: AttemptContext) -> None:
        after_commit(session, lambda: calls.append((ctx.job.type_name, jobs.status(ctx.job.id))))

    queue = sync_and_async_queue(act)
    enqueue(engine, queue.job("sync"), queue.job("async"))
    await drain(queue, engine)
    assert sorted(calls) == [("async", JobStatus.COMPLETED), ("sync", JobStatus.COMPLETED)]


async def test_after_commit_callbacks_do_not_run_for_a_failed_or_lost_attempt(engine: Engine, jobs: Jobs) -> None:
    ran: list[Any] = []

    def act(session: Any, ctx: AttemptContext) -> None:
        after_commit(session, ran.append, ctx.job.input)
        if ctx.job.input == "fails":
            raise ValueError
        call(engine, cancel_jobs, [ctx.job.id])

    queue = sync_and_async_queue(act)
    enqueue(engine, *(queue.job(mode, end) for mode in ("sync", "async") for end in ("fails", "is lost")))
    await drain(queue, engine)
    assert sorted(jobs.statuses().values()) == [*[JobStatus.CANCELLED] * 2, *[JobStatus.DEAD] * 2]
    assert ran == []
