"""After a corrected clock, a switch to another cluster or a restored dump, limits, leases, rates and schedules are right."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, func, make_url, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobQueue, JobStatus, Schedule, Worker
from sa_jobqueue.events import JobRescued
from sa_jobqueue.models import Base
from sa_jobqueue.operations import list_schedules, upsert_queue, upsert_schedule
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import PostgresServer
from tests.chaos.proxy import Proxy
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import scalar, write
from tests.fixtures.workers import Start, quick, until, working

pytestmark = own_database


def simple() -> JobQueue[Any]:
    """Return a queue with one handler that does nothing."""
    queue = JobQueue()

    @queue.handler("test")
    async def test(payload: Any) -> None: ...

    return queue


def completed(engine: Engine) -> int:
    return int(scalar(engine, select(func.count()).where(Job.status == JobStatus.COMPLETED)) or 0)


async def test_a_rate_limit_used_up_by_a_clock_ahead_recovers_at_once(
    engine: Engine, sessions: sessionmaker[Session], start: Start
) -> None:
    with sessions.begin() as session:
        upsert_queue(session, QueueSettings(name="default", rate_limit=100, rate_period=timedelta(seconds=1)))
        session.execute(
            text(
                "INSERT INTO rate_state (is_type, name, tokens, spent_at) "
                "SELECT false, 'default', 0, now() + interval '1 hour'"
            )
        )
        session.add_all([Job("test", None) for _ in range(3)])
    async with start(simple()):
        await until(lambda: completed(engine) == 3, description="the start of jobs under the rate")


async def test_jobs_of_a_dead_worker_with_a_future_heartbeat_are_rescued(jobs: Jobs, start: Start) -> None:
    jobs.add_worker("gone", silent_for=-86_400)
    held_id = jobs.add(JobStatus.RUNNING, worker_id="gone")
    async with start(simple(), heartbeat_timeout=timedelta(seconds=1)) as log:
        (event, *_) = await log.until(JobRescued)
    assert (event.job_id, event.worker_id) == (held_id, "gone")


async def test_a_schedule_advanced_by_a_clock_ahead_returns_to_its_next_time(
    sessions: sessionmaker[Session], start: Start
) -> None:
    with sessions.begin() as session:
        upsert_schedule(session, Schedule(name="tick", type_name="test", cron="* * * * *"))
        upsert_schedule(session, Schedule(name="daily", type_name="test", cron="0 4 * * *"))
        before = {schedule.name: schedule.next_fire_at for schedule in list_schedules(session)}
        ahead = update(Job.Schedule).where(Job.Schedule.name == "tick")
        session.execute(ahead.values(next_fire_at=func.now() + timedelta(days=1)))

    def is_corrected() -> bool:
        with sessions() as session:
            next_times = {schedule.name: schedule.next_fire_at for schedule in list_schedules(session)}
            now = session.scalar(select(func.now()))
        assert next_times["daily"] == before["daily"]
        assert next_times["tick"] is not None
        assert now is not None
        return bool(next_times["tick"] - now <= timedelta(minutes=1))

    async with start(simple()):
        await until(is_corrected, description="the schedule's next time")


@dataclass
class Switch:
    """Two clusters with the same tables behind one address; the first has the higher transaction counter."""

    proxy: Proxy
    url: str
    first: Engine
    second: Engine
    second_socket: Path

    def move(self) -> None:
        """Have every client reconnect, to the second cluster."""
        self.proxy.move(self.second_socket)


@pytest.fixture
def switch(jobqueue_server: PostgresServer, database_url: str) -> Iterator[Switch]:
    """Give the test's database, and a cluster of its own that a dump of it was restored into."""
    host = make_url(database_url).query.get("host")
    if not binary_dirs() or not isinstance(host, str):
        pytest.skip("no PostgreSQL programs at hand to start another cluster")
    name = make_url(database_url).database
    first = create_engine(database_url, poolclass=NullPool)
    with first.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            "DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
        )
    with EmbeddedServer(binary_dirs()[-1].path) as server:
        maintenance = create_engine(server.socket_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with maintenance.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        second = create_engine(make_url(server.socket_url).set(database=name), poolclass=NullPool)
        Base.metadata.create_all(second)
        port = make_url(database_url).query.get("port") or make_url(database_url).port
        proxy = Proxy(Path(host) / f".s.PGSQL.{port}")
        user = make_url(database_url).username
        url = f"postgresql+psycopg://{user}@127.0.0.1:{proxy.port}/{name}"
        socket = next(server.socket_dir.glob(".s.PGSQL.*[0-9]"))
        yield Switch(proxy, url, first, second, socket)
        proxy.close()


@pytest.mark.long
async def test_workers_switched_to_another_cluster_keep_its_limits_and_run_all_its_jobs(switch: Switch) -> None:
    queue = JobQueue()
    running, most, ran = Counter[str](), Counter[str](), Counter[str]()

    @queue.handler("test")
    async def test(cluster: str) -> None:
        running[cluster] += 1
        most[cluster] = max(most[cluster], running[cluster])
        # Long enough for each worker to have come to the second cluster while the first two jobs run there.
        await asyncio.sleep(0.5 if cluster == "second" else 0.02)
        running[cluster] -= 1
        ran[cluster] += 1

    for cluster, engine, count in (("first", switch.first, 40), ("second", switch.second, 6)):
        with Session(engine) as session, session.begin():
            upsert_queue(session, QueueSettings(name="default", global_concurrency=2))
            session.add_all([Job("test", cluster) for _ in range(count)])
    through = create_engine(switch.url, pool_size=4)
    async with AsyncExitStack() as workers:
        for _ in range(4):
            worker = Worker(queue, through, options=quick(concurrency=4))
            await workers.enter_async_context(working(worker))
        await until(lambda: completed(switch.first) == 40, description="the end of the first cluster's jobs")
        switch.move()
        await until(lambda: completed(switch.second) == 6, description="the end of the second cluster's jobs")
    assert (most["first"], most["second"]) == (2, 2)
    assert ran["second"] == 6  # each once
    through.dispose()


READ = text(
    "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes "
    "WHERE schemaname = current_schema() AND indexrelname = 'ix_job_changed'"
)


@pytest.mark.slow
async def test_restored_rows_with_future_transaction_ids_slow_polls_only_once(engine: Engine, start: Start) -> None:
    """Counted are index entries that an idle worker reads at each of its polls."""
    count = 3000
    write(
        engine,
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, input, scheduled_at, changed_xid) "
        "SELECT id, id, 'test', 'test', 'null', now() + interval '1 hour', '99999999' "
        "FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, :count)) AS new",
        {"count": count},
    )

    def read() -> tuple[int, int]:
        with engine.connect() as connection:
            scans, entries = connection.execute(READ).one()
        return int(scans), int(entries)

    before = read()

    def is_cheap() -> bool:
        nonlocal before
        scans, entries = read()
        if scans - before[0] < 10:
            return False
        few = entries - before[1] <= scans - before[0]
        before = scans, entries
        return few

    async with start(simple()):
        await until(lambda: read()[1] >= count, description="the first look of an idle worker")
        await until(is_cheap, description="ten looks of an idle worker that read less than an entry each")
    with engine.connect() as connection:
        ahead = "SELECT count(*) FROM job WHERE changed_xid >= pg_snapshot_xmax(pg_current_snapshot())"
        assert connection.scalar(text(ahead)) == 0
