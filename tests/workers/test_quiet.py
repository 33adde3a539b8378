"""The cost of an idle worker to the server, and its punctual duties."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.db.connections import close_idle
from sa_jobqueue.events import HeartbeatFailing, JobCompleted, JobRescued, JobStarted
from sa_jobqueue.operations import list_workers
from sa_jobqueue.worker.background import heartbeat
from sa_jobqueue.worker.background.heartbeat import Heartbeat, tick_after
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.claim import claimer
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, scalar, scalars, write
from tests.fixtures.workers import PATIENCE, Start, quick, until, working

LONG = {"heartbeat_interval": timedelta(minutes=5), "heartbeat_timeout": timedelta(minutes=11)}


def nothing_to_do() -> JobQueue[Job]:
    queue = JobQueue()

    @queue.handler("test")
    async def test() -> None: ...

    return queue


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers that are idle pause at once as they do after ten minutes."""
    monkeypatch.setattr(heartbeat, "IDLE_SHARE", 1e-6)


def _pauses(engine: Engine) -> list[float]:
    return scalars(engine, "SELECT extract(epoch FROM heartbeat_pause)::float FROM worker")


@pytest.mark.slow
async def test_an_idle_worker_sends_one_statement_a_tick(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by the server: what fifty ticks cost more than ten."""
    monkeypatch.setattr(heartbeat, "IDLE_SHARE", 1e9)
    outside = create_engine(make_url(database_url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    name = make_url(database_url).database
    send, ticks = Heartbeat.send, 0

    def counted(self: Heartbeat) -> float:
        nonlocal ticks
        ticks += 1
        return send(self)

    def count(condition: str) -> int:
        with outside.connect() as connection:
            return int(connection.scalar(text(condition), {"name": name}) or 0)

    async def transactions(least: int) -> int:
        nonlocal ticks
        ticks, before = 0, count("SELECT xact_commit FROM pg_stat_database WHERE datname = :name")
        options = quick(heartbeat_interval=timedelta(milliseconds=100), prune_interval=timedelta(days=1))
        async with working(Worker(nothing_to_do(), engine, options=options)):
            await until(lambda: ticks >= least, description="so many ticks")
        mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND application_name LIKE 'sa_jobqueue%'"
        await until(lambda: not count(mine), description="none of its sessions is left")
        return count("SELECT xact_commit FROM pg_stat_database WHERE datname = :name") - before - ticks

    monkeypatch.setattr(Heartbeat, "send", counted)
    few = await transactions(10)
    assert await transactions(50) < few + 20  # autovacuum, and polls after the start
    outside.dispose()


async def test_closing_idle_connections_opens_none_and_leaves_those_in_use(database_url: str) -> None:
    engine, opened = create_async_engine(database_url, pool_size=3, max_overflow=0), 0

    def count(*_: object) -> None:
        nonlocal opened
        opened += 1

    event.listen(engine.sync_engine, "connect", count)
    used, *idle = [await engine.connect() for _ in range(3)]
    for connection in idle:
        await connection.close()
    for _ in range(2):
        await asyncio.wait_for(close_idle(engine), PATIENCE)
    assert opened == 3
    await used.execute(text("SELECT 1"))
    again = [await engine.connect() for _ in range(2)]  # the pool has its size again
    assert opened == 5
    for connection in [used, *again]:
        await connection.close()
    await engine.dispose()


def test_ticks_slow_down_to_two_a_minute() -> None:
    at = [0.0]
    while at[-1] < 3600:
        at.append(at[-1] + tick_after(5.0, at[-1]))
    in_minute = [sum(60 * minute <= instant < 60 * (minute + 1) for instant in at) for minute in range(60)]
    assert max(in_minute) <= 12
    assert max(in_minute[10:]) <= 2
    # With what comes seldom: a walk of the pruner, a full scan and a check of the listener's connection.
    assert sum(in_minute[10:40]) + 10 + 2 * 3 <= 2 * 30


async def test_a_worker_at_rest_announces_its_pause_and_resumes_with_the_first_job(
    engine: Engine, at_rest: None, start: Start
) -> None:
    queue, release = JobQueue(), asyncio.Event()

    @queue.handler("waits")
    async def waits() -> None:
        await release.wait()

    async with start(
        queue, **LONG | {"heartbeat_interval": timedelta(milliseconds=100)}, poll_interval=timedelta(minutes=9)
    ) as log:
        await until(lambda: _pauses(engine) == [44.9], description="it pauses")
        enqueue(engine, waits.job())
        await log.until(JobStarted)
        await until(lambda: _pauses(engine) == [0.0], description="it sends heartbeats again")
        release.set()
        await until(lambda: _pauses(engine) == [44.9], description="it pauses again")
    assert log.of(HeartbeatFailing) == []


async def test_a_pausing_worker_is_not_taken_for_dead(engine: Engine, jobs: Jobs, start: Start) -> None:
    jobs.add_worker("rests:1", silent_for=30)
    lost = jobs.add(JobStatus.RUNNING, worker_id="rests:1")

    def pause(seconds: int) -> None:
        write(engine, "UPDATE worker SET heartbeat_pause = make_interval(secs => :s) WHERE id = 'rests:1'", {"s": seconds})

    pause(35)
    (rests,) = call(engine, list_workers)
    assert rests.silent_for == timedelta(0)
    async with start(nothing_to_do()) as log:
        marker = enqueue(engine, Job("test"))[0]
        await until(lambda: jobs.status(marker) is JobStatus.COMPLETED, description="it works, after a first tick")
        assert jobs.status(lost) is JobStatus.RUNNING
        pause(0)
        await log.until(JobRescued)


async def test_a_lease_that_ends_during_a_pause_is_found_when_it_ends(jobs: Jobs, at_rest: None, start: Start) -> None:
    """The next tick would be five minutes later."""
    jobs.add_worker("dies:1", silent_for=11 * 60 - 1)
    jobs.add(JobStatus.RUNNING, worker_id="dies:1")
    async with start(nothing_to_do(), **LONG) as log:
        async with asyncio.timeout(PATIENCE):
            await log.until(JobRescued)


@pytest.mark.slow
async def test_a_job_without_notification_is_found_by_a_tick_which_has_the_listener_checked(
    engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, check = list[Listener](), Listener.check

    def noted(self: Listener) -> None:
        checked.append(self)
        check(self)

    monkeypatch.setattr(Listener, "check", noted)
    async with start(nothing_to_do(), poll_interval=timedelta(milliseconds=200)) as log:
        await until(lambda: any(pause > 0 for pause in _pauses(engine)), description="it is announced and idle")
        await asyncio.to_thread(jobs.add)
        await log.until(JobCompleted)
    assert len(checked) == 1


async def test_a_tick_that_fails_costs_no_lease(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue, release = JobQueue(), asyncio.Event()

    @queue.handler("waits")
    async def waits() -> None:
        await release.wait()

    def rename(old: str, new: str) -> None:
        write(engine, f"ALTER TABLE {old} RENAME TO {new}")

    def beat() -> str:
        return str(scalar(engine, "SELECT heartbeat_at FROM worker"))

    def differs(before: str) -> bool:
        return beat() != before

    (job_id,) = enqueue(engine, waits.job())
    async with start(queue) as log:
        await log.until(JobStarted)
        await asyncio.to_thread(rename, "quarantine", "elsewhere")
        for _ in range(3):
            before = await asyncio.to_thread(beat)
            await until(partial(differs, before), description="another heartbeat")
        await asyncio.to_thread(rename, "elsewhere", "quarantine")
        release.set()
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED)
    assert log.of(HeartbeatFailing) == []


async def test_an_idle_worker_keeps_four_connections(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For claims, results, heartbeats and notifications; others are closed after their use."""
    monkeypatch.setattr(claimer, "_QUIET", 0.0)
    mine = text(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sa_jobqueue%' AND datname = current_database()"
    )

    def held() -> int:
        return int(scalar(engine, mine) or 0)

    async with working(Worker(nothing_to_do(), engine, options=quick(prune_interval=timedelta(milliseconds=100)))) as log:
        enqueue(engine, *(Job("test") for _ in range(20)))
        await log.until(JobCompleted, 20)
        await until(lambda: held() == 4, description="four are left")
