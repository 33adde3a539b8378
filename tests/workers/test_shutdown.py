"""Shutdown is bounded: it drains until a deadline, then releases the remaining jobs without counting the attempt."""

from __future__ import annotations

import asyncio
import gc
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import AttemptContext, JobQueue, JobStatus, Worker
from sa_jobqueue.events import Event, JobStarted, WorkerStarted, WorkerStopped
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.workers import PATIENCE, EventLog, quick, waiting_queue

pytestmark = pytest.mark.every_python


async def test_stop_lets_running_jobs_finish_and_claims_no_more(engine: Engine, jobs: Jobs) -> None:
    queue, release = waiting_queue()
    first, second = enqueue(engine, queue.job("waits", {}, priority=1), queue.job("waits", {}))
    worker = Worker(queue, engine, options=quick(concurrency=1))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted)
    worker.stop()
    release.set()
    await asyncio.wait_for(run, PATIENCE)
    assert (jobs.status(first), jobs.status(second)) == (JobStatus.COMPLETED, JobStatus.PENDING)
    assert log.of(WorkerStopped)[0].released == 0


async def test_jobs_that_outlast_the_shutdown_timeout_are_released_uncounted(engine: Engine, jobs: Jobs) -> None:
    queue, _ = waiting_queue()
    (job_id,) = enqueue(engine, queue.job("waits", {}, max_attempts=1))
    worker = Worker(queue, engine, options=quick(shutdown_timeout=timedelta(milliseconds=100)))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted)
    worker.stop()
    await asyncio.wait_for(run, PATIENCE)
    row = jobs.get(job_id)
    # Attempt 1 was its last; a release adds one more.
    assert (row["status"], row["attempt"], row["max_attempts"]) == (JobStatus.PENDING, 1, 2)
    assert [attempt["outcome"] for attempt in jobs.attempts(job_id)] == ["released"]
    assert row["scheduled_at"] <= _now(engine)
    assert log.of(WorkerStopped)[0].released == 1


def test_stop_may_be_called_in_any_thread(engine: Engine, jobs: Jobs) -> None:
    queue, _ = waiting_queue()
    (job_id,) = enqueue(engine, queue.job("waits", {}))
    worker = Worker(queue, engine, options=quick())
    started = threading.Event()
    worker.events.subscribe(lambda _: started.set(), kinds=[JobStarted])
    # In debug mode, asyncio refuses what another thread does to a loop without waking it.
    thread = threading.Thread(target=lambda: asyncio.run(worker.run(), debug=True), daemon=True)
    thread.start()
    assert started.wait(PATIENCE)
    worker.stop(now=True)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    # Twice, if a claim that was on its way to the server took the released job again.
    assert {attempt["outcome"] for attempt in jobs.attempts(job_id)} == {"released"}
    assert jobs.status(job_id) is JobStatus.PENDING
    worker.stop()  # nothing runs: the next run ends at once
    asyncio.run(worker.run())


async def test_a_second_stop_releases_jobs_at_once(engine: Engine, jobs: Jobs) -> None:
    queue, _ = waiting_queue()
    (job_id,) = enqueue(engine, queue.job("waits", {}))
    worker = Worker(queue, engine, options=quick(shutdown_timeout=timedelta(hours=1)))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted)
    worker.stop()
    await asyncio.sleep(0)
    assert not run.done()
    worker.stop(now=True)
    await asyncio.wait_for(run, PATIENCE)
    assert jobs.status(job_id) is JobStatus.PENDING
    assert log.of(WorkerStopped)[0].released == 1


async def test_an_attempt_stopped_before_its_task_runs_is_released(engine: Engine, jobs: Jobs) -> None:
    queue, _ = waiting_queue()
    both = enqueue(engine, queue.job("waits", {}), queue.job("waits", {}))
    worker = Worker(queue, engine, options=quick(concurrency=2))

    def stop_all(event: Event) -> None:
        if isinstance(event, JobStarted):  # in the first one's task; the second one's has not run yet
            worker.stop(now=True)

    worker.events.subscribe(stop_all)
    log = EventLog(worker)
    await asyncio.wait_for(worker.run(), PATIENCE)
    assert len(log.of(JobStarted)) == 1
    assert [jobs.status(job_id) for job_id in both] == [JobStatus.PENDING, JobStatus.PENDING]
    assert log.of(WorkerStopped)[0].released == 2


async def test_threads_are_signalled_to_stop_and_do_not_delay_shutdown(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    release = threading.Event()
    reasons: list[str | None] = []

    @queue.handler("listens")
    def listens(payload: dict[str, Any], ctx: AttemptContext) -> None:
        assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        reasons.append(ctx.cancel_reason)

    @queue.handler("ignores_stop")
    def ignores_stop(payload: dict[str, Any]) -> None:
        release.wait(PATIENCE)

    polite, stubborn = enqueue(engine, listens.job({}), ignores_stop.job({}))
    worker = Worker(queue, engine, options=quick(shutdown_timeout=timedelta(0), cancel_timeout=timedelta(seconds=1)))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted, 2)
    worker.stop()
    await asyncio.wait_for(run, PATIENCE)
    assert reasons == ["shutdown"]
    assert worker.has_stuck_threads
    assert (jobs.status(polite), jobs.status(stubborn)) == (JobStatus.PENDING, JobStatus.PENDING)
    release.set()


async def test_a_stopped_worker_leaves_no_row_no_connection_and_no_thread(engine: Engine) -> None:
    queue, release = waiting_queue()
    release.set()
    enqueue(engine, *(queue.job("waits", {}) for _ in range(5)))
    before = set(threading.enumerate())
    worker = Worker(queue, engine, options=quick())
    run = asyncio.create_task(worker.run())
    await EventLog(worker).until(JobStarted)
    worker.stop()
    await asyncio.wait_for(run, PATIENCE)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM worker")).scalar_one() == 0
    await connections_end(engine)
    assert not {thread.name for thread in set(threading.enumerate()) - before if "heartbeat" in thread.name}


async def connections_end(engine: Engine) -> None:
    """Wait until no worker has a connection to this database: a backend is gone a moment after its connection is."""
    statement = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sa_jobqueue%'"
    )
    async with asyncio.timeout(PATIENCE):
        with engine.connect() as connection:
            while connection.execute(statement).scalar_one():
                connection.rollback()
                await asyncio.sleep(0)


# A checkout that is cancelled is SQLAlchemy's to clean up, later, which it mentions. The connection is closed before.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up:sqlalchemy.exc.SAWarning")
async def test_a_worker_stopped_while_it_connects_leaves_no_connection(engine: Engine) -> None:
    # Whatever it was about to open: each run is stopped some steps of the loop later than the one before. Without the
    # garbage collector, which would hide an unclosed connection.
    gc.collect()
    gc.disable()
    try:
        for steps in range(0, 120, 10):
            queue, _ = waiting_queue()
            worker = Worker(queue, engine, options=quick())
            log = EventLog(worker)
            run = asyncio.create_task(worker.run())
            await log.until(WorkerStarted)
            for _ in range(steps):
                await asyncio.sleep(0)
            worker.stop()
            await asyncio.wait_for(run, PATIENCE)
            await connections_end(engine)
    finally:
        gc.enable()
        gc.collect()


def _now(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT now()")).scalar_one()
