"""A worker that is asked through the database to drain finishes its jobs, claims no more, and ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue import JobStatus, Worker
from sa_jobqueue.events import DrainRequested, JobStarted, WorkerStarted, WorkerStopped
from sa_jobqueue.operations import WorkerFilter, drain_workers, list_workers
from sa_jobqueue.types import WorkerState
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, EventLog, quick, until, waiting_queue

pytestmark = pytest.mark.every_python


def ask(engine: Engine, **where: Any) -> list[str]:
    return call(engine, drain_workers, where=WorkerFilter(**where)).ids


def states(engine: Engine) -> list[str]:
    return [worker.state for worker in call(engine, list_workers)]


async def test_a_draining_worker_finishes_running_jobs_and_claims_no_more(engine: Engine, jobs: Jobs) -> None:
    queue, release = waiting_queue()
    first, second = enqueue(engine, queue.job("waits", {}, priority=1), queue.job("waits", {}))
    worker = Worker(queue, engine, options=quick(concurrency=1, shutdown_timeout=timedelta(hours=1)))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted)
    assert await asyncio.to_thread(ask, engine, ids=[worker.id]) == [worker.id]
    await log.until(DrainRequested)
    await until(lambda: states(engine) == [WorkerState.DRAINING], description="it says that it drains")
    assert not run.done()
    release.set()
    await asyncio.wait_for(run, PATIENCE)
    assert (jobs.status(first), jobs.status(second)) == (JobStatus.COMPLETED, JobStatus.PENDING)
    assert (len(log.of(DrainRequested)), log.of(WorkerStopped)[0].released) == (1, 0)
    assert states(engine) == []


async def test_a_drain_request_is_noticed_at_the_next_heartbeat(engine: Engine) -> None:
    queue, _ = waiting_queue()
    options = quick(poll_interval=timedelta(minutes=10), listen=False)
    worker, other_worker = (Worker(queue, engine, options=options) for _ in range(2))
    logs = [EventLog(worker), EventLog(other_worker)]
    runs = [asyncio.create_task(worker.run()), asyncio.create_task(other_worker.run())]
    for log in logs:
        await log.until(WorkerStarted)
    await asyncio.to_thread(ask, engine, ids=[worker.id])
    # The heartbeat interval is 0.2 s here; the poll interval, at which it would be noticed too, ten minutes.
    await asyncio.wait_for(runs[0], PATIENCE)
    assert not runs[1].done()  # it was not asked to drain
    other_worker.stop()
    await asyncio.wait_for(runs[1], PATIENCE)
