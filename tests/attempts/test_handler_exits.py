"""Every way out of a handler ends its attempt: counted, with its error recorded, and nothing else is disturbed."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue, JobStatus, Worker, cancel_jobs
from sa_jobqueue.context import current_attempt
from sa_jobqueue.events import AttemptLost, ComponentFailed, JobCancelled, JobCompleted, JobStarted
from sa_jobqueue.models import Job
from sa_jobqueue.operations import complete_job, delete_chains
from sa_jobqueue.registry import BatchItem, Proceed
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.run import executor
from tests.fixtures import isolated
from tests.fixtures.isolated import PanicException, leave
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.variants import variants
from tests.fixtures.workers import AT_ONCE, PATIENCE, EventLog, Start, is_listening, quick, until

pytestmark = pytest.mark.every_python

OPTIONS: dict[str, Any] = {"max_attempts": 2, "retry": AT_ONCE}

WAYS = {
    "panic": "tests.fixtures.isolated.PanicException",
    "generator exit": "GeneratorExit",
    "keyboard interrupt": "KeyboardInterrupt",
    "system exit": "SystemExit",
    "cancelled error": "asyncio.exceptions.CancelledError",
    "lost attempt": "sa_jobqueue.errors.LostAttemptError",
}
"""Exceptions of a handler, and their records."""
SELF_CANCELLATION = {"cancels its task": "asyncio.exceptions.CancelledError"}


class Resource:
    """The value of a dependency."""


def _sync(queue: JobQueue[Any]) -> None:
    @queue.handler("sync", **OPTIONS)
    def sync(way: str, ctx: AttemptContext) -> None:
        leave(way, ctx)

    @queue.handler("sync_session", **OPTIONS)
    def sync_session(way: str, session: Session, ctx: AttemptContext) -> None:
        session.execute(text("SELECT 1"))
        leave(way, ctx)

    @queue.batch_handler("batch", max_size=2, concurrency=1, **OPTIONS)
    def batch(items: list[BatchItem[str]], session: Session) -> None:
        session.execute(text("SELECT 1"))
        leave(items[0].payload, items[0].context)


def _async(queue: JobQueue[Any]) -> None:
    @queue.handler("bare", **OPTIONS)
    async def bare(way: str, ctx: AttemptContext) -> None:
        leave(way, ctx)
        await asyncio.sleep(0)

    @queue.handler("async_session", **OPTIONS)
    async def async_session(way: str, session: AsyncSession, ctx: AttemptContext) -> None:
        await session.execute(text("SELECT 1"))
        leave(way, ctx)

    @queue.batch_handler("async_batch", max_size=2, concurrency=1, **OPTIONS)
    async def async_batch(items: list[BatchItem[str]]) -> None:
        leave(items[0].payload, items[0].context)
        await asyncio.sleep(0)


def _around(queue: JobQueue[Any]) -> None:
    """Middleware that exits, and around a handler that does: in its own task and in another."""

    @queue.middleware
    async def surrounds(attempt: AttemptContext, proceed: Proceed) -> None:
        if attempt.job.type_name == "in_middleware":
            await proceed()
            leave(attempt.job.input, attempt)
        elif attempt.job.type_name == "beside_middleware":
            await asyncio.create_task(proceed())  # type: ignore[arg-type]
        else:
            forgotten: asyncio.Task[None] = asyncio.create_task(proceed())  # type: ignore[arg-type]
            await asyncio.wait({forgotten})

    @queue.handler("in_middleware", **OPTIONS)
    async def in_middleware(way: str) -> None: ...

    @queue.handler("beside_middleware", **OPTIONS)
    async def beside_middleware(way: str, ctx: AttemptContext) -> None:
        leave(way, ctx)

    @queue.handler("forgotten_by_middleware", **OPTIONS)
    def forgotten_by_middleware(way: str, ctx: AttemptContext) -> None:
        leave(way, ctx)


def _provided(queue: JobQueue[Any]) -> None:
    @contextmanager
    def provide(attempt: AttemptContext) -> Iterator[Resource]:
        if attempt.job.type_name.startswith("enter"):
            leave(attempt.job.input, attempt)
        yield Resource()
        leave(attempt.job.input, attempt)

    queue.dependency(Resource, provide)

    @queue.handler("enter", **OPTIONS)
    def enter(way: str, resource: Resource) -> None: ...

    @queue.handler("enter_async", **OPTIONS)
    async def enter_async(way: str, resource: Resource) -> None: ...

    @queue.handler("exit", **OPTIONS)
    def leaves_at_exit(way: str, resource: Resource) -> None: ...

    @queue.handler("exit_async", **OPTIONS)
    async def leaves_at_exit_async(way: str, resource: Resource) -> None: ...


@pytest.fixture
async def no_unraisable_warnings() -> Any:
    """Give the list of what no task or callback was asked for, as the loop reports it; empty at the end."""
    loop, errors = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    yield errors
    gc.collect()
    await asyncio.sleep(0)
    assert errors == []


async def run_out(queue: JobQueue[Any], engine: Engine, jobs: Jobs, **options: Any) -> EventLog:
    """Run workers until no job is pending."""
    while True:
        worker = Worker(queue, engine, options=quick(concurrency=10, **options))
        log = EventLog(worker)
        await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
        if JobStatus.PENDING not in jobs.statuses().values():
            return log


@pytest.mark.slow
@pytest.mark.usefixtures("no_unraisable_warnings")
@pytest.mark.parametrize(
    ("declare", "more"),
    [(_sync, {}), (_async, SELF_CANCELLATION), (_around, {}), (_provided, {})],
    ids=["threads", "tasks", "middleware", "dependencies"],
)
async def test_every_abnormal_exit_of_a_handler_is_a_counted_failure(
    engine: Engine, jobs: Jobs, declare: Callable[[JobQueue[Any]], None], more: dict[str, str]
) -> None:
    queue: JobQueue[Any] = JobQueue()
    declare(queue)
    expected: dict[Any, tuple[str, str, str]] = {}
    for handler in queue:
        for way, kind in (WAYS | more).items():
            (job_id,) = enqueue(engine, handler.job(way))
            expected[job_id] = (handler.name, way, kind)
    await run_out(queue, engine, jobs)
    outcomes = {
        job_id: (
            jobs.status(job_id),
            jobs.get(job_id)["attempt"],
            [(attempt["outcome"], attempt["error"]["type"]) for attempt in jobs.attempts(job_id)],
        )
        for job_id in expected
    }
    wrong = {expected[job_id]: end for job_id, end in outcomes.items() if end != _twice(expected[job_id][2])}
    assert wrong == {}


def _twice(kind: str) -> Any:
    return JobStatus.DEAD, 2, [("failed", kind), ("failed", kind)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_unraisable_warnings")
async def test_every_abnormal_exit_of_an_isolated_handler_is_a_counted_failure(engine: Engine, jobs: Jobs) -> None:
    ways = (WAYS | SELF_CANCELLATION).items()
    expected = {enqueue(engine, isolated.leaves_anyhow.job(way))[0]: kind for way, kind in ways}
    await run_out(isolated.leaving, engine, jobs, heartbeat_timeout=timedelta(minutes=5))
    for job_id, kind in expected.items():
        history = [(attempt["outcome"], attempt["error"]["type"]) for attempt in jobs.attempts(job_id)]
        assert (jobs.status(job_id), history) == (JobStatus.DEAD, [("failed", kind)] * 2), kind


@pytest.mark.usefixtures("no_unraisable_warnings")
async def test_a_defect_of_the_executor_fails_the_attempt_and_is_logged(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("fails", **OPTIONS)
    async def fails(payload: Any) -> None:
        raise ValueError("of the handler")

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(executor, "failed", broken)
    (job_id,) = enqueue(engine, fails.job({}))
    with caplog.at_level(logging.ERROR, "sa_jobqueue.worker"):
        await run_out(queue, engine, jobs)
    assert (jobs.status(job_id), jobs.get(job_id)["attempt"]) == (JobStatus.DEAD, 2)
    assert {attempt["error"]["message"] for attempt in jobs.attempts(job_id)} == {"a defect"}
    (first, *_) = [record for record in caplog.records if record.exc_info]
    assert "ZeroDivisionError: a defect" in caplog.text
    assert str(job_id) in first.getMessage()


@pytest.mark.usefixtures("no_unraisable_warnings")
async def test_a_worker_that_is_cancelled_releases_its_attempts_uncounted(engine: Engine, jobs: Jobs) -> None:
    """Unlike a handler that cancels its own task: the same exception, seen from within."""
    queue, is_running = JobQueue[Any](), asyncio.Event()

    @queue.handler("waits", max_attempts=2)
    async def waits(payload: Any) -> None:
        is_running.set()
        await asyncio.Event().wait()

    (job_id,) = enqueue(engine, waits.job({}))
    working = asyncio.create_task(Worker(queue, engine, options=quick()).run())
    await asyncio.wait_for(is_running.wait(), PATIENCE)
    working.cancel()
    await asyncio.wait({working}, timeout=PATIENCE)
    (attempt,) = jobs.attempts(job_id)
    assert (jobs.status(job_id), attempt["outcome"], jobs.get(job_id)["max_attempts"]) == (JobStatus.PENDING, "released", 3)


ENDS: dict[str, tuple[Callable[[Session, Any], Any], JobStatus, type]] = {
    "cancels": (lambda session, job_id: cancel_jobs(session, [job_id]), JobStatus.CANCELLED, JobCancelled),
    "completes": (lambda session, job_id: complete_job(session, job_id, "by hand"), JobStatus.COMPLETED, JobCompleted),
}


def _ending(engine: Engine, way: str) -> JobQueue[Any]:
    """Return handlers of each kind that write, end their own job through their session, and return."""
    act, queue = ENDS[way][0], JobQueue[Any]()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (job text)"))
    write = text("INSERT INTO effect VALUES (:job)")

    @queue.handler("sync", **OPTIONS)
    def sync(payload: Any, session: Session, ctx: AttemptContext) -> str:
        session.execute(write, {"job": str(ctx.job.id)})
        act(session, ctx.job.id)
        return "returned"

    @queue.handler("async", **OPTIONS)
    async def asynchronous(payload: Any, session: AsyncSession, ctx: AttemptContext) -> Any:
        await session.execute(write, {"job": str(ctx.job.id)})
        await session.run_sync(act, ctx.job.id)
        return ctx.continue_with(after, {})

    @queue.handler("after")
    async def after(payload: Any) -> None: ...

    @queue.batch_handler("batch", max_size=10, **OPTIONS)
    def batch(items: list[BatchItem[Any]], session: Session) -> None:
        session.execute(write, {"job": str(items[0].id)})
        act(session, items[0].id)

    @queue.batch_handler("async_batch", max_size=10, **OPTIONS)
    async def async_batch(items: list[BatchItem[Any]], session: AsyncSession) -> None:
        await session.execute(write, {"job": str(items[0].id)})
        await session.run_sync(act, items[0].id)

    return queue


@pytest.mark.usefixtures("no_unraisable_warnings")
@pytest.mark.parametrize("way", variants(ENDS, default=["completes"]))
async def test_a_handler_may_end_its_own_job_through_its_session(engine: Engine, jobs: Jobs, way: str) -> None:
    """With its other writes, once: whatever it returns. The others of its batch complete."""
    queue, (_, status, event) = _ending(engine, way), ENDS[way]
    kinds = ["sync", "async", "batch", "async_batch"]
    ids = enqueue(engine, *(queue.job(kind, {}) for kind in kinds))
    neighbours = enqueue(engine, *(queue.job(kind, {}) for kind in kinds[2:]))
    log = await run_out(queue, engine, jobs)
    standing = jobs.statuses()
    assert [standing.get(job_id) for job_id in ids] == [status] * 4
    assert [standing[job_id] for job_id in neighbours] == [JobStatus.COMPLETED] * 2
    assert len(standing) == 6  # no continuation of an ended chain
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*), count(DISTINCT job) FROM effect")).one() == (4, 4)
        connection.execute(text("DROP TABLE effect"))
    events: list[Any] = log.of(event)
    assert {event.job_id for event in events} >= set(ids)
    assert log.of(AttemptLost) == []
    if status is JobStatus.COMPLETED:
        assert [jobs.get(job_id)["output"] for job_id in ids] == ["by hand"] * 4
        assert {attempt["outcome"] for job_id in ids for attempt in jobs.attempts(job_id)} == {"superseded"}


@pytest.mark.usefixtures("no_unraisable_warnings")
async def test_a_handler_that_ends_its_own_job_and_then_fails_changes_nothing(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("fails", **OPTIONS)
    def fails(payload: Any, session: Session, ctx: AttemptContext) -> None:
        cancel_jobs(session, [ctx.job.id])
        raise ValueError

    @queue.handler("pushes", **OPTIONS)  # by a statement that means nothing: neither ended nor lost
    def pushes(payload: Any, session: Session, ctx: AttemptContext) -> None:
        session.execute(text("UPDATE job SET status = 'pending', leased_by = NULL WHERE id = :id"), {"id": ctx.job.id})

    ids = enqueue(engine, fails.job({}), pushes.job({}))
    await run_out(queue, engine, jobs)
    for job_id in ids:
        assert (jobs.status(job_id), len(jobs.attempts(job_id)), jobs.get(job_id)["attempt"]) == (JobStatus.DEAD, 2, 2)


REASONS: dict[str, tuple[str, CancelReason]] = {
    "cancelled": ("UPDATE job_queue SET status = 'cancelled'", CancelReason.CANCELLED),
    "completed": ("", CancelReason.COMPLETED),
    "deleted": ("", CancelReason.DELETED),
    "rescued": ("UPDATE job SET attempt = attempt + 1", CancelReason.LEASE_LOST),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", REASONS)
async def test_cancel_reason_says_why_an_attempt_is_stopped(engine: Engine, start: Start, how: str) -> None:
    queue, reasons = JobQueue[Any](), list[CancelReason | None]()

    @queue.handler("waits")
    def waits(payload: Any, ctx: AttemptContext) -> None:
        assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        reasons.append(ctx.cancel_reason)

    statement, reason = REASONS[how]
    (job_id,) = enqueue(engine, waits.job({}))
    async with start(queue, poll_interval=timedelta(minutes=10)) as log:
        await log.until(JobStarted)
        await until(lambda: is_listening(engine), description="it listens")
        with engine.begin() as connection:  # a notification that any client could send changes nothing
            connection.execute(text(f"NOTIFY \"{Job.__jobqueue__.channel('lost')}\", '{job_id}'"))
        with Session(engine) as session, session.begin():
            if how == "completed":
                complete_job(session, job_id)
            elif how == "deleted":
                delete_chains(session, [job_id])
            else:
                session.execute(text(statement))
                session.execute(
                    text("SELECT pg_notify(:c, :id)"), {"c": Job.__jobqueue__.channel("lost"), "id": str(job_id)}
                )
        await log.until(AttemptLost)
    assert reasons == [reason]
    assert log.of(ComponentFailed) == []


@pytest.mark.usefixtures("no_unraisable_warnings")
async def test_an_on_stop_callback_that_raises_does_not_prevent_the_stop(
    engine: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    queue, called = JobQueue[Any](), threading.Event()

    def raises(error: BaseException) -> Callable[[], None]:
        def callback() -> None:
            raise error

        return callback

    @queue.handler("waits")
    def waits(payload: Any, ctx: AttemptContext) -> None:
        ctx.on_stop(raises(ValueError("of a callback")))
        ctx.on_stop(raises(PanicException()))
        ctx.on_stop(called.set)
        assert called.wait(PATIENCE)
        assert ctx is current_attempt()

    (job_id,) = enqueue(engine, waits.job({}))
    async with start(queue, poll_interval=timedelta(minutes=10)) as log:
        await log.until(JobStarted)
        await until(lambda: is_listening(engine), description="it listens")
        call(engine, cancel_jobs, [job_id])
        await log.until(AttemptLost)
    assert called.is_set()
    assert log.of(ComponentFailed) == []  # the listener among them, which a notification reaches
    assert "of a callback" in caplog.text
