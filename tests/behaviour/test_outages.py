"""A worker outlives outages of the database, and losing notifications costs latency only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, Job, JobQueue, JobStatus, Worker, errors, ids
from sa_jobqueue.events import ComponentFailed, HeartbeatFailing, JobCompleted, JobRescued, JobStarted
from sa_jobqueue.models import Base
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.worker.claim.claimer import Claimer
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import scalar, write
from tests.fixtures.workers import PATIENCE, EventLog, Start, quick, until, wait_until, working

pytestmark = own_database


def simple() -> JobQueue[Any]:
    """Return a queue with one handler that does nothing."""
    queue = JobQueue()

    @queue.handler("nothing")
    async def nothing(payload: dict[str, Any]) -> None: ...

    return queue


async def test_a_worker_reconnects_after_all_its_connections_were_cut(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue = JobQueue()
    cut, release = asyncio.Event(), asyncio.Event()

    @queue.handler("waits")
    async def waits(payload: dict[str, Any]) -> str:
        cut.set()
        await release.wait()
        return "done"

    (running,) = enqueue(engine, waits.job({}))
    async with start(queue) as log:
        await cut.wait()
        write(engine, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'sa_jobqueue%'")
        release.set()  # its completion meets dead connections
        await log.until(ComponentFailed)
        await until(lambda: jobs.status(running) is JobStatus.COMPLETED, description="the completion is written in the end")
        (later,) = enqueue(engine, waits.job({}))
        await until(lambda: jobs.status(later) is JobStatus.COMPLETED, description="new jobs run")
    assert jobs.get(running)["attempt"] == 1  # tried again was the write, not the job


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """Give a server of this test's own, to be crashed."""
    directories = binary_dirs()
    if not directories:
        pytest.skip("no PostgreSQL programs at hand to start a server that may crash")
    with EmbeddedServer(directories[-1].path) as server:
        yield server


@pytest.mark.slow
async def test_a_worker_outlives_a_crash_of_the_server(own_server: EmbeddedServer) -> None:
    engine = create_engine(own_server.url, pool_pre_ping=True)
    Base.metadata.create_all(engine)
    jobs = Jobs(engine)
    queue = JobQueue()
    started, release = asyncio.Event(), asyncio.Event()

    @queue.handler("waits")
    async def waits(payload: dict[str, Any]) -> None:
        started.set()
        await release.wait()

    ids = enqueue(engine, *(waits.job({}) for _ in range(3)))
    options = quick(heartbeat_timeout=timedelta(seconds=30), heartbeat_interval=timedelta(milliseconds=200))
    async with working(Worker(queue, engine, options=options)) as log:
        await log.until(JobStarted, 3)
        own_server.crash()
        release.set()
        await log.until(ComponentFailed)
        own_server.restart()
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    assert [jobs.get(job_id)["attempt"] for job_id in ids] == [1, 1, 1]
    engine.dispose()


@pytest.mark.slow
async def test_a_worker_without_heartbeats_stops_its_attempts_before_others_rescue_them(
    own_server: EmbeddedServer,
) -> None:
    engine = create_engine(own_server.url, pool_pre_ping=True)
    Base.metadata.create_all(engine)
    jobs = Jobs(engine)
    queue = JobQueue()
    stopped = asyncio.Event()

    @queue.handler("waits")
    async def waits(payload: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    (job_id,) = enqueue(engine, waits.job({}))
    options = quick(heartbeat_timeout=timedelta(seconds=1), shutdown_timeout=timedelta(0))
    async with working(Worker(queue, engine, options=options)) as log:
        await log.until(JobStarted)
        own_server.crash()
        event = (await log.until(HeartbeatFailing))[0]
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        # Before the second after which others rescue them, by one heartbeat.
        assert timedelta(milliseconds=800) <= event.silent
        own_server.restart()
        await until(lambda: jobs.get(job_id)["attempt"] >= 2, description="it is claimed anew")
    assert jobs.attempts(job_id)[0]["outcome"] in {"released", "lost"}
    engine.dispose()


async def test_jobs_run_without_any_notification(engine: Engine, start: Start) -> None:
    queue = simple()
    async with start(queue, listen=False) as log:
        enqueue(engine, queue.job("nothing", {}))
        await log.until(JobCompleted)


async def test_a_notification_starts_a_job_long_before_the_poll(engine: Engine, start: Start) -> None:
    queue = simple()
    async with start(queue, poll_interval=timedelta(minutes=10)) as log:
        await until(lambda: _listeners(engine) == 1 and _is_asleep(engine), description="the worker sleeps")
        enqueue(engine, queue.job("nothing", {}))
        await log.until(JobCompleted)
        # Cut the listener: it reconnects, and so does the speed.
        write(
            engine, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^LISTEN|^SELECT bool_and.pg_try'"
        )
        await log.until(ComponentFailed)
        enqueue(engine, queue.job("nothing", {}))  # its notification may be lost: found on the reconnect
        await log.until(JobCompleted, 2)
        await until(lambda: _listeners(engine) == 1 and _is_asleep(engine), description="the worker sleeps again")
        enqueue(engine, queue.job("nothing", {}))
        await log.until(JobCompleted, 3)


def _is_asleep(engine: Engine) -> bool:
    """Whether the claimer has caught up, its last statement before it rests, a while ago."""
    statement = """SELECT bool_and(now() - state_change > interval '300 ms') FROM pg_stat_activity
               WHERE application_name LIKE 'sa_jobqueue%'
               AND (query LIKE 'WITH read%' OR query LIKE 'WITH picked%')"""
    with engine.connect() as connection:
        return bool(connection.execute(text(statement)).scalar())


async def test_a_workers_retry_starts_when_due_not_at_the_next_poll(engine: Engine, start: Start) -> None:
    queue = JobQueue()

    @queue.handler("twice", retry=Backoff(base=timedelta(milliseconds=300), jitter=False))
    async def twice(payload: dict[str, Any], ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            await until(lambda: _is_asleep(engine), description="the claimer sleeps, knowing of nothing to come")
            raise ValueError

    enqueue(engine, twice.job({}))
    async with start(queue, poll_interval=timedelta(minutes=10), listen=False) as log:
        await log.until(JobCompleted)


async def test_a_rescued_job_starts_when_due_not_at_the_next_poll(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue = simple()
    async with start(queue, poll_interval=timedelta(minutes=10), listen=False) as log:
        await until(lambda: _is_asleep(engine), description="the claimer sleeps, knowing of nothing to come")
        jobs.add(JobStatus.RUNNING, worker_id="gone:1", type_name="nothing", input={})
        jobs.add_worker("gone:1", silent_for=60)
        await log.until(JobCompleted)


async def test_a_notification_received_while_the_worker_falls_asleep_is_not_lost(
    engine: Engine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = simple()
    sleep = Claimer._sleep
    late = iter([True])

    async def enqueue_meanwhile(self: Claimer) -> None:
        if next(late, False):  # after the last catch-up, and before the claimer rests
            await asyncio.to_thread(enqueue, engine, queue.job("nothing", {}))
            await asyncio.wait_for(self._woken.wait(), PATIENCE)
        await sleep(self)

    monkeypatch.setattr(Claimer, "_sleep", enqueue_meanwhile)
    async with start(queue, poll_interval=timedelta(minutes=10)) as log:
        await log.until(JobCompleted)


async def test_a_job_due_while_the_worker_falls_asleep_does_not_wait_for_the_next_poll(
    engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = Claimer._sleep
    job_id = jobs.add(type_name="nothing", input={}, due_in=0.3)

    def is_due() -> bool:
        return bool(scalar(engine, "SELECT scheduled_at <= now() FROM job WHERE id = :id", {"id": job_id}))

    async def become_due(self: Claimer) -> None:
        await until(is_due, description="the job is due")  # after a catch-up that returned it as scheduled for later
        await sleep(self)

    monkeypatch.setattr(Claimer, "_sleep", become_due)
    async with start(simple(), poll_interval=timedelta(minutes=10), listen=False) as log:
        await log.until(JobCompleted)


def test_a_pool_too_small_for_the_handlers_is_refused(database_url: str) -> None:
    queue = JobQueue()

    @queue.handler("writes")
    def writes(payload: dict[str, Any], session: Session) -> None: ...

    engine = create_engine(database_url, pool_size=2, max_overflow=1)
    with pytest.raises(errors.InvalidOptionError, match="fewer than the 4 handlers"):
        Worker(queue, engine, options=quick(concurrency=4))
    Worker(queue, engine, options=quick(concurrency=3))
    shared = create_engine(database_url, poolclass=StaticPool)
    with pytest.raises(errors.InvalidOptionError, match="holds 1 connections, fewer than the 2 handlers"):
        Worker(queue, shared, options=quick(concurrency=2))
    Worker(queue, shared, options=quick(concurrency=1))


def test_worker_refuses_arguments_that_are_no_queue_or_engine(engine: Engine) -> None:
    for jobs, argument, option in [
        (engine, simple(), "jobs"),
        (simple(), str(engine.url), "engine"),
    ]:
        with pytest.raises(errors.InvalidOptionError) as caught:
            Worker(jobs, argument)  # type: ignore[arg-type]
        assert caught.value.option == option
    with pytest.raises(errors.UnsupportedServerError, match="needs PostgreSQL, and this database is sqlite"):
        Worker(simple(), create_engine("sqlite://"))


def _listeners(engine: Engine) -> int:
    with engine.connect() as connection:
        statement = text("SELECT count(*) FROM pg_stat_activity WHERE query ~ '^LISTEN.*unblock|^SELECT bool_and.pg_try'")
        return int(connection.execute(statement).scalar_one())


async def test_a_handler_that_blocks_the_loop_does_not_lose_its_lease(
    engine: Engine, jobs: Jobs, start: Start, tmp_path: Any
) -> None:
    queue = JobQueue()
    last_heartbeat = text("SELECT max(heartbeat_at) FROM worker JOIN job ON leased_by = worker.id")

    def heartbeat() -> Any:
        with engine.connect() as connection:
            return connection.execute(last_heartbeat).scalar_one()

    @queue.handler("rude")
    async def rude(payload: dict[str, Any]) -> None:
        for _ in range(3):
            before = heartbeat()
            wait_until(lambda before=before: heartbeat() > before, description="a heartbeat while the loop is blocked")  # type: ignore[misc]

    other_worker = simple()  # a second worker, in a separate thread, rescues meanwhile
    (job_id,) = enqueue(engine, rude.job({}))

    def sweep_until_done() -> None:
        async def watch() -> None:
            async with working(Worker(other_worker, engine, options=quick())):
                await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED)

        asyncio.run(watch())

    async with start(queue) as log:
        await asyncio.gather(asyncio.to_thread(sweep_until_done), log.until(JobCompleted))
    assert jobs.get(job_id)["attempt"] == 1
    assert jobs.attempts(job_id) == []


async def test_no_transaction_is_open_while_a_handler_without_a_session_runs(engine: Engine, start: Start) -> None:
    queue = JobQueue()

    def open_ones() -> int:
        with engine.connect() as connection:
            open_count = connection.scalar(
                text("""SELECT count(*) FROM pg_stat_activity
                WHERE application_name LIKE 'sa_jobqueue%' AND xact_start IS NOT NULL AND state LIKE 'idle%'""")
            )
            return open_count or 0

    @queue.handler("looks")
    async def looks(payload: dict[str, Any]) -> None:
        await until(lambda: open_ones() == 0)  # the worker's other parts have short ones of their own

    enqueue(engine, looks.job({}))
    async with start(queue) as log:
        await log.until(JobCompleted)


async def test_a_database_that_does_not_answer_is_a_typed_error_without_the_password() -> None:
    engine = create_engine("postgresql+psycopg://somebody:secret@127.0.0.1:9/nothing")
    with pytest.raises(errors.DatabaseUnavailableError) as caught:
        await Worker(simple(), engine, options=quick()).run()
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value)


async def test_only_the_databases_clock_decides(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime as module
    import time

    queue = simple()
    monkeypatch.setattr(ids, "_last", ids._last)  # ids made in that future must not outlive it
    wrong = time.time() + 10 * 365 * 86_400
    monkeypatch.setattr(time, "time", lambda: wrong)
    monkeypatch.setattr(time, "time_ns", lambda: int(wrong * 1e9))
    with Session(engine) as session, session.begin():
        session.add(Job("nothing", {}))
        session.add(queue["nothing"].job({}, delay=timedelta(hours=1)))
        session.add(queue["nothing"].job({}, at=module.datetime(2001, 1, 1, tzinfo=module.UTC)))
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    assert len(log.of(JobCompleted)) == 2
    with engine.connect() as connection:
        sane = text("SELECT bool_and(abs(extract(epoch FROM scheduled_at - now())) < 7200) FROM job")
        assert connection.execute(sane).scalar_one()


@pytest.mark.long
async def test_steps_of_the_host_clock_during_a_run_change_nothing(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    queue, over = JobQueue(), asyncio.Event()
    right, ahead = (time.time, time.time_ns), [0.0]
    monkeypatch.setattr(ids, "_last", ids._last)
    monkeypatch.setattr(time, "time", lambda: right[0]() + ahead[0])
    monkeypatch.setattr(time, "time_ns", lambda: right[1]() + int(ahead[0] * 1e9))

    @queue.handler("holds")
    async def holds() -> None:
        await over.wait()

    @queue.handler("late")
    async def late() -> None: ...

    def last_heartbeat() -> Any:
        with engine.connect() as connection:
            return connection.execute(select(Job.Worker.heartbeat_at).where(Job.Worker.id == worker.id)).scalar_one()

    async def step_by(seconds: float) -> None:
        ahead[0] += seconds
        before = last_heartbeat()
        (delayed,) = enqueue(engine, late.job(delay=timedelta(milliseconds=300)))
        await until(lambda: jobs.status(delayed) is JobStatus.COMPLETED, description="what was due later")
        await until(lambda: last_heartbeat() > before, description="a heartbeat")
        row = jobs.get(delayed)
        assert timedelta(0) <= row["started_at"] - row["scheduled_at"] < timedelta(seconds=PATIENCE)

    (holding,) = enqueue(engine, holds.job())
    worker = Worker(queue, engine, options=quick())
    async with working(worker) as log:
        await log.until(JobStarted)
        for seconds in (86_400.0, -2 * 86_400.0, 365 * 86_400.0):
            await step_by(seconds)
        over.set()
    assert (jobs.status(holding), jobs.get(holding)["attempt"]) == (JobStatus.COMPLETED, 1)
    assert not log.of(JobRescued)
    assert not log.of(HeartbeatFailing)
