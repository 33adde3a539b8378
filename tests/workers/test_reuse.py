"""One `Worker` runs once at a time; it may run again, on any event loop, and be stopped as often as one likes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import Engine

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.events import WorkerStarted, WorkerStopped
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, EventLog, quick, working


@pytest.fixture
def counted() -> tuple[JobQueue, Counter[str]]:
    """Give handlers that count their calls."""
    queue, calls = JobQueue(), Counter[str]()

    @queue.handler("test")
    async def test() -> None:
        calls["test"] += 1

    return queue, calls


async def test_running_a_running_worker_raises_and_does_not_disturb_it(
    engine: Engine, jobs: Jobs, counted: tuple[JobQueue, Counter[str]]
) -> None:
    queue, calls = counted
    worker = Worker(queue, engine, options=quick())
    async with working(worker) as log:
        await log.until(WorkerStarted)
        for again in (worker.run, worker.run_until_idle):
            with pytest.raises(JobQueueError, match=f"worker {worker.id} is already running"):
                await again()
        with pytest.raises(JobQueueError):
            await asyncio.to_thread(asyncio.run, worker.run())
        jobs.add_many(8)
        worker.stop()
        worker.stop()
    assert len(log.of(WorkerStopped)) == 1
    await worker.run_until_idle()
    assert calls["test"] == 8


async def test_a_worker_stopped_before_run_ends_at_once_and_can_run_again(
    engine: Engine, jobs: Jobs, counted: tuple[JobQueue, Counter[str]]
) -> None:
    queue, calls = counted
    jobs.add()
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    worker.stop()
    worker.stop(now=True)
    await asyncio.wait_for(worker.run(), PATIENCE)
    assert len(log.of(WorkerStopped)) == 1
    await worker.run_until_idle()
    assert calls["test"] == 1
    jobs.add()
    await asyncio.to_thread(asyncio.run, worker.run_until_idle())  # on another loop
    assert calls["test"] == 2


async def test_a_run_that_failed_to_start_does_not_prevent_the_next_run(engine: Engine) -> None:

    from sa_jobqueue.errors import SchemaMissingError

    queue = JobQueue()

    @queue.handler("test")
    async def test() -> None: ...

    worker = Worker(queue, engine, options=quick())
    write(engine, "ALTER TABLE job RENAME TO elsewhere")
    with pytest.raises(SchemaMissingError):
        await worker.run()
    write(engine, "ALTER TABLE elsewhere RENAME TO job")
    await worker.run_until_idle()
