"""Middleware around the attempts of a worker: its order, its effects on the handler, and how it may end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Discard, JobQueue, JobStatus, Snooze
from sa_jobqueue.events import AttemptLost, JobCompleted, JobStarted, MiddlewareFailed
from sa_jobqueue.registry import Proceed
from tests.fixtures.jobs import Jobs, enqueue, foreign
from tests.fixtures.workers import PATIENCE, Start, drain

pytestmark = pytest.mark.every_python

TENANT: ContextVar[str] = ContextVar("tenant")
KINDS = ["async", "async with session", "sync", "sync with session"]


def every_kind(act: Callable[[AttemptContext], Any], **options: Any) -> JobQueue[Any]:
    """Return a queue with the same handler, sync and async, with and without a session; each does what `act` does."""
    queue = JobQueue()

    @queue.handler("async", **options)
    async def asynchronous(payload: str, ctx: AttemptContext) -> Any:
        return act(ctx)

    @queue.handler("async_with_session", **options)
    async def asynchronous_with_session(payload: str, session: AsyncSession, ctx: AttemptContext) -> Any:
        return act(ctx)

    @queue.handler("sync", **options)
    def synchronous(payload: str, ctx: AttemptContext) -> Any:
        return act(ctx)

    @queue.handler("sync_with_session", **options)
    def synchronous_with_session(payload: str, session: Session, ctx: AttemptContext) -> Any:
        return act(ctx)

    return queue


def one_of_each(queue: JobQueue[Any], engine: Engine) -> dict[str, Any]:
    """Enqueue a job of every kind; return their ids by kind."""
    return dict(zip(KINDS, enqueue(engine, *(queue.job(kind.replace(" ", "_"), kind) for kind in KINDS)), strict=True))


async def test_middleware_surrounds_the_handler_and_its_sessions_commit(engine: Engine, jobs: Jobs) -> None:
    calls: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    queue = every_kind(lambda ctx: calls[ctx.job.input].append(TENANT.get()))

    @queue.middleware
    async def outer(attempt: AttemptContext, proceed: Proceed) -> None:
        calls[attempt.job.input].append("outer in")
        TENANT.set(f"tenant of {attempt.job.input}")
        await proceed()
        calls[attempt.job.input].append(f"outer out: {jobs.status(attempt.job.id)}")

    @queue.middleware
    async def inner(attempt: AttemptContext, proceed: Proceed) -> None:
        calls[attempt.job.input].append(f"inner in: {TENANT.get()}")
        await proceed()
        calls[attempt.job.input].append("inner out")

    ids = one_of_each(queue, engine)
    log = await drain(queue, engine)
    for kind in KINDS:
        final_status = (
            "completed" if "session" in kind else "running"
        )  # without a session the worker completes it afterwards
        tenant = f"tenant of {kind}"
        assert calls[kind] == ["outer in", f"inner in: {tenant}", tenant, "inner out", f"outer out: {final_status}"]
        assert jobs.status(ids[kind]) is JobStatus.COMPLETED
    assert (len(log.of(JobStarted)), len(log.of(JobCompleted))) == (4, 4)


async def test_middleware_can_end_the_attempt_before_the_handler_runs(engine: Engine, jobs: Jobs) -> None:
    called: list[Any] = []
    queue = every_kind(called.append, max_attempts=1)
    ends: dict[str, Exception] = {
        "async": Snooze(timedelta(hours=1)),
        "async with session": Discard("not any more"),
        "sync": ValueError("not allowed"),
    }

    @queue.middleware
    async def gate(attempt: AttemptContext, proceed: Proceed) -> None:
        if attempt.job.input in ends:
            raise ends[attempt.job.input]
        # And to return without proceeding is an error, never a completion.

    ids = one_of_each(queue, engine)
    log = await drain(queue, engine)
    assert called == log.of(JobStarted) == []
    assert jobs.status(ids["async"]) is JobStatus.PENDING
    dead_letters = {
        dead_letter["job_id"]: (dead_letter["reason"], dead_letter["error"]) for dead_letter in jobs.dead_letters()
    }
    reasons = {kind: dead_letters[job_id][0] for kind, job_id in ids.items() if job_id in dead_letters}
    assert reasons == {"async with session": "discarded", "sync": "exhausted", "sync with session": "exhausted"}
    assert dead_letters[ids["sync"]][1]["traceback"].count("File ") == 1  # the middleware's own frame, none of ours
    error = dead_letters[ids["sync with session"]][1]
    assert error["type"] == "sa_jobqueue.errors.MiddlewareError"
    assert "gate returned without calling proceed()" in error["message"]


async def test_middleware_sees_every_failure_and_cannot_suppress_one(engine: Engine, jobs: Jobs) -> None:
    failures: list[str] = []

    def fail(ctx: AttemptContext) -> None:
        raise ValueError("failed")

    queue = every_kind(fail, max_attempts=1)

    @queue.handler("typed", max_attempts=1)
    async def typed(payload: int) -> None: ...

    @queue.middleware
    async def hides(attempt: AttemptContext, proceed: Proceed) -> None:
        try:
            await proceed()
        except Exception as error:
            failures.append(type(error).__name__)

    one_of_each(queue, engine)
    enqueue(engine, foreign("typed", "unfit", max_attempts=1))  # its payload is decoded within the middleware
    await drain(queue, engine)
    assert sorted(failures) == ["UnreadableInputError", *["ValueError"] * 4]
    assert set(jobs.statuses().values()) == {JobStatus.DEAD}
    dead_letter = jobs.dead_letters()[0]
    assert dead_letter["error"]["traceback"].count("File ") == 2  # the handler's frames


async def test_a_middleware_failure_after_the_handler_counts_until_the_commit(
    engine: Engine, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    queue = every_kind(lambda ctx: None, max_attempts=1)

    @queue.middleware
    async def fails(attempt: AttemptContext, proceed: Proceed) -> None:
        await proceed()
        raise ZeroDivisionError("too late")

    ids = one_of_each(queue, engine)
    log = await drain(queue, engine)
    for kind in KINDS:
        assert jobs.status(ids[kind]) is (JobStatus.COMPLETED if "session" in kind else JobStatus.DEAD)
    assert (len(log.of(JobCompleted)), len(log.of(MiddlewareFailed)), len(log.of(AttemptLost))) == (2, 2, 0)


async def test_middleware_runs_within_the_attempts_timeout(engine: Engine, jobs: Jobs) -> None:
    queue = every_kind(lambda ctx: None, max_attempts=1, timeout=timedelta(seconds=30))

    @queue.middleware
    async def hangs(attempt: AttemptContext, proceed: Proceed) -> None:
        if attempt.job.input.endswith("session"):
            await proceed()
        attempt.extend(timedelta(milliseconds=50))  # from now: its time is as good as up
        await asyncio.Event().wait()

    ids = one_of_each(queue, engine)
    log = await drain(queue, engine)
    outcomes = {kind: [attempt["outcome"] for attempt in jobs.attempts(job_id)] for kind, job_id in ids.items()}
    assert outcomes == {kind: [] if "session" in kind else ["timed_out"] for kind in KINDS}
    assert (len(log.of(JobCompleted)), len(log.of(AttemptLost))) == (2, 0)


async def test_a_job_completed_in_its_session_is_not_released_because_of_middleware(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue = every_kind(lambda ctx: None)
    after, events_seen = asyncio.Event(), []

    @queue.middleware
    async def hangs(attempt: AttemptContext, proceed: Proceed) -> None:
        await proceed()
        events_seen.append(attempt.job.id)
        if len(events_seen) == len(KINDS):
            after.set()
        await asyncio.Event().wait()

    ids = one_of_each(queue, engine)
    async with start(queue, shutdown_timeout=timedelta(milliseconds=50)) as log:
        await asyncio.wait_for(after.wait(), PATIENCE)
    for kind in KINDS:
        assert jobs.status(ids[kind]) is (JobStatus.COMPLETED if "session" in kind else JobStatus.PENDING)
    assert (len(log.of(JobCompleted)), len(log.of(AttemptLost))) == (2, 0)


async def test_each_included_registry_has_its_own_middleware(engine: Engine, jobs: Jobs) -> None:
    application, feature = JobQueue(), JobQueue()
    calls: list[tuple[str, str]] = []

    def recording(name: str) -> Callable[[AttemptContext, Proceed], Any]:
        async def middleware(attempt: AttemptContext, proceed: Proceed) -> None:
            calls.append((name, attempt.job.type_name))
            await proceed()

        return middleware

    @application.handler("ours")
    async def ours() -> None: ...
    @feature.handler("theirs")
    async def theirs() -> None: ...

    application.include(feature)
    application.middleware(recording("application"))
    feature.middleware(recording("feature"))
    enqueue(engine, ours.job(), theirs.job())
    await drain(application, engine)
    assert sorted(calls) == [("application", "ours"), ("feature", "theirs")]
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}
