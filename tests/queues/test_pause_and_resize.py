"""Queues, types and workers are controlled while they run: paused, resumed, resized; nothing is lost by it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Backoff, JobQueue, JobStatus, Retry, Worker, operations
from sa_jobqueue.events import JobCompleted, JobRescheduled, SettingsChanged, WorkerStarted
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.worker.background import controls
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, EventLog, quick, until, working


def run_operation(engine: Engine, operation: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    return call(engine, operation, *arguments, **more)


def counting() -> tuple[JobQueue[Any], Counter[int]]:
    """Give a queue whose jobs count how often each of them ran."""
    queue: JobQueue[Any] = JobQueue()
    ran: Counter[int] = Counter()

    @queue.handler("count")
    async def count(number: int) -> None:
        ran[number] += 1

    @queue.handler("other", queue="other")
    async def other(number: int) -> None:
        ran[number] += 1

    return queue, ran


async def until_paused(log: EventLog, *, paused: tuple[str, ...]) -> None:
    """Wait until the worker knows that just these are paused."""
    async with asyncio.timeout(PATIENCE):
        count = 1
        while True:
            last = (await log.until(SettingsChanged, count))[-1]
            if last.paused_queues + last.paused_types == paused:
                return
            count += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pause", "resume", "name"),
    [
        pytest.param(operations.pause_queues, operations.resume_queues, "default", id="queue"),
        pytest.param(operations.pause_job_types, operations.resume_job_types, "count", id="type", marks=pytest.mark.long),
    ],
)
async def test_pausing_stops_claims_and_resuming_starts_jobs_enqueued_meanwhile(
    engine: Engine,
    jobs: Jobs,
    pause: Callable[..., Any],
    resume: Callable[..., Any],
    name: str,
) -> None:
    queue, ran = counting()
    first = enqueue(engine, *(queue.job("count", number) for number in range(300)))
    # Only the notification can cause it to read.
    seldom = {"heartbeat_interval": timedelta(minutes=5), "heartbeat_timeout": timedelta(minutes=11)}
    worker = Worker(queue, engine, options=quick(concurrency=4, **seldom))

    async def another_runs(number: int) -> None:
        (job_id,) = enqueue(engine, queue.job("other", number))
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="another queue goes on")

    async with working(worker) as log:
        await log.until(JobCompleted)
        await asyncio.to_thread(run_operation, engine, pause, [name], by="ann")
        await until_paused(log, paused=(name,))
        await another_runs(998)  # claims come one after the other: the one under way as it learnt of it is over
        await until(lambda: worker.running == 0, description="what ran has ended")
        waiting = {job_id for job_id, status in jobs.statuses().items() if status is JobStatus.PENDING}
        second = enqueue(engine, *(queue.job("count", number, priority=9) for number in range(300, 310)))
        await another_runs(999)
        statuses = jobs.statuses()
        assert {statuses[job_id] for job_id in (*waiting, *second)} == {JobStatus.PENDING}
        await asyncio.to_thread(run_operation, engine, resume, [name])
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="everything ran")
    assert len(first) + len(second) + 2 == len(ran) == ran.total()


async def test_a_paused_fairness_key_is_reported_by_its_name(engine: Engine) -> None:
    async with working(Worker(counting()[0], engine, options=quick())) as log:
        await log.until(WorkerStarted)
        await asyncio.to_thread(run_operation, engine, operations.pause_queues, ["default"], fairness_key="acme")
        await until_paused(log, paused=("default (fairness key 'acme')",))


async def test_a_starting_worker_does_not_claim_from_a_paused_queue(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(reader: controls.ControlReader) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(controls.ControlReader, "run", never)  # what it knows, it knows before it claims
    queue, ran = counting()
    paused, free = enqueue(engine, queue.job("count", 1), queue.job("other", 2))
    run_operation(engine, operations.pause_queues, ["default"])
    await asyncio.wait_for(Worker(queue, engine, options=quick()).run_until_idle(), PATIENCE)
    assert (jobs.status(paused), jobs.status(free), ran) == (JobStatus.PENDING, JobStatus.COMPLETED, {2: 1})


@pytest.mark.parametrize("listen", [True, False])
async def test_settings_changed_in_sql_or_without_notification_are_polled(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, listen: bool
) -> None:
    monkeypatch.setattr(controls, "READ_EVERY_ALONE", 0.05)
    queue, _ = counting()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        async with working(Worker(queue, engine, options=quick(listen=listen))) as log:
            await log.until(WorkerStarted)
            connection.execute(text("INSERT INTO queue (name, paused_at) VALUES ('default', now())"))
            await until_paused(log, paused=("default",))
            (job_id,) = enqueue(engine, queue.job("count", 1))
            connection.execute(text("DELETE FROM queue"))
            await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="it ran")


async def test_a_running_worker_changes_its_concurrency(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    running, permits = threading.Semaphore(0), threading.Semaphore(0)

    @queue.handler("waits")
    def waits(payload: None) -> None:
        running.release()
        assert permits.acquire(timeout=PATIENCE)

    def shown() -> list[int]:
        return [worker.concurrency for worker in run_operation(engine, operations.list_workers)]

    async def has_begun(count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(running.acquire, timeout=PATIENCE)

    enqueue(engine, *(queue.job("waits", None) for _ in range(6)))
    worker = Worker(queue, engine, options=quick(concurrency=1))
    async with working(worker):
        await has_begun(1)
        assert run_operation(engine, operations.resize_workers, 3, where=operations.WorkerFilter(ids=[worker.id])).ids == [
            worker.id
        ]
        await has_begun(2)  # in threads of their own
        await until(lambda: shown() == [3], description="it says so")
        run_operation(engine, operations.resize_workers, 1, where=operations.WorkerFilter())
        await until(lambda: shown() == [1], description="it says so")
        permits.release(2)
        await until(lambda: worker.running == 1, description="those above the number end, and none takes their places")
        assert not running.acquire(blocking=False)
        run_operation(engine, operations.resize_workers, None, where=operations.WorkerFilter())
        permits.release(4)
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="everything ran")


async def test_requested_concurrency_is_capped_by_the_pool_for_session_handlers(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("writes")
    def writes(payload: None, session: Session) -> None: ...

    small = create_engine(engine.url, pool_size=2, max_overflow=1)
    worker = Worker(queue, small, options=quick(concurrency=1))
    async with working(worker) as log:
        await log.until(WorkerStarted)
        run_operation(engine, operations.resize_workers, 50, where=operations.WorkerFilter(ids=[worker.id]))
        (changed,) = await log.until(SettingsChanged)
        assert changed.concurrency == 3
    small.dispose()


async def test_a_queues_retry_policy_applies_only_without_one_from_handler_or_error(engine: Engine, jobs: Jobs) -> None:
    century, queue = timedelta(days=36_500), JobQueue()

    @queue.handler("has_no_policy")
    async def has_no_policy(payload: None) -> None:
        raise ValueError

    @queue.handler("has_a_policy", retry=immediately, max_attempts=2)
    async def has_a_policy(payload: None) -> None:
        raise ValueError

    @queue.handler("raises_retry", max_attempts=2)
    async def raises_retry(payload: None) -> None:
        raise Retry(timedelta(0))

    @queue.handler("other", queue="other", max_attempts=1)
    async def other(payload: None) -> None: ...

    policy = Backoff(base=century, cap=century)
    run_operation(engine, operations.upsert_queue, QueueSettings(name="default", retry=policy))
    # The settings of a fairness key take precedence over those of its queue.
    run_operation(
        engine,
        operations.upsert_queue,
        QueueSettings(name="default", fairness_key="42", retry=Backoff(base=timedelta(microseconds=1))),
    )
    names = ("has_no_policy", "has_a_policy", "raises_retry")
    waits, *end = enqueue(engine, *(queue.job(name, None) for name in names))
    (of_key,) = enqueue(engine, queue.job("has_no_policy", None, fairness_key="42", max_attempts=2))
    worker = Worker(queue, engine, options=quick(queues=["default", "other"]))
    async with working(worker) as log:
        await until(lambda: {jobs.status(job_id) for job_id in (*end, of_key)} == {JobStatus.DEAD}, description="they ended")
        await until(
            lambda: jobs.status(waits) is JobStatus.PENDING and jobs.get(waits)["attempt"] == 1, description="it waits"
        )
        row = jobs.get(waits)
        assert row["scheduled_at"] - row["started_at"] > timedelta(minutes=1)  # but for once in some millions of times
        before = len(log.of(SettingsChanged))
        await asyncio.to_thread(run_operation, engine, operations.upsert_queue, QueueSettings(name="default"))
        await log.until(SettingsChanged, before + 1)
        (again,) = enqueue(engine, queue.job("has_no_policy", None, max_attempts=2))
        await until(lambda: jobs.status(again) is JobStatus.DEAD, description="the library's own backoff is of a second")
        assert len([event for event in log.of(JobRescheduled) if event.job_id == again]) == 1
