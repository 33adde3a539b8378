"""The server's disk is full: writes raise, nothing is half done or lost, and work continues when there is space again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.events import ComponentFailed, HeartbeatFailing, JobRescheduled, JobStarted
from sa_jobqueue.models import Base
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.worker.logs import describe
from tests.fixtures.disks import NoDisk, SmallDisk
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, EventLog, quick, until, working

MEGABYTES = 128
"""Room for a new cluster and two segments of its log, and some to fill."""
_WRITE_LOG = text("SELECT pg_logical_emit_message(false, 'sa_jobqueue test', repeat('x', 2000000))")


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    """Give a disk that nothing else uses."""
    try:
        disk = SmallDisk(MEGABYTES)
    except NoDisk as error:
        pytest.skip(str(error))
    with disk:
        yield disk


@pytest.fixture
def server(disk: SmallDisk) -> Iterator[EmbeddedServer]:
    """Give a server whose data, and log of changes, are on that disk."""
    directories = binary_dirs()
    if not directories:
        pytest.skip("no PostgreSQL programs at hand to start a server of one's own")
    settings = {"shared_buffers": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB", "autovacuum": "off"}
    with EmbeddedServer(directories[-1].path, settings, disk.path / "data") as server:
        yield server


def large() -> str:
    """Return what does not fit into the free room of any page, and cannot be made smaller."""
    return os.urandom(100_000).hex()


def refused(engine: Engine, *jobs: Job) -> None:
    """Enqueue, and expect an error that names the cause."""
    with pytest.raises(OperationalError) as caught, Session(engine) as session, session.begin():
        session.add_all(jobs)
    assert isinstance(caught.value.orig, psycopg.errors.DiskFull)


def full(log: EventLog, component: str) -> ComponentFailed | None:
    """Return the event of a component of the worker that failed because of the full disk."""
    for event in log.of(ComponentFailed):
        cause = event.error.orig if isinstance(event.error, OperationalError) else None
        if event.component == component and isinstance(cause, psycopg.errors.DiskFull):
            return event
    return None


@pytest.mark.long
async def test_work_interrupted_by_a_full_disk_completes_when_space_is_freed(
    disk: SmallDisk, server: EmbeddedServer
) -> None:
    """Tables cannot grow, then the server cannot write its log and dies of it; the worker outlives both."""
    engine = create_engine(server.url, pool_pre_ping=True, pool_size=10)
    Base.metadata.create_all(engine)
    write(engine, "CREATE TABLE effect (job_id uuid, what text)")
    jobs, queue = Jobs(engine), JobQueue()
    release, release_writer = asyncio.Event(), threading.Event()

    @queue.handler("holds")
    async def holds() -> str:
        await release.wait()
        return large()

    @queue.handler("writes", retry=immediately)
    def writes(session: Session) -> None:
        release_writer.wait(PATIENCE)
        session.execute(text("INSERT INTO effect SELECT id, :what FROM job WHERE type_name = 'writes'"), {"what": large()})

    @queue.handler("plain")
    async def plain(payload: str) -> None: ...

    (holding, writing) = enqueue(engine, holds.job(), writes.job())
    lost = jobs.add(JobStatus.RUNNING, worker_id="gone:1", type_name="plain", input="")
    jobs.add_worker("gone:1", silent_for=-3600)
    options = quick(concurrency=3, heartbeat_timeout=timedelta(seconds=60), heartbeat_interval=timedelta(milliseconds=100))
    async with working(Worker(queue, engine, options=options)) as log:
        await log.until(JobStarted, 2)
        disk.fill()

        refused(engine, plain.job(large()))
        assert jobs.count() == 3  # nothing of it is there
        with engine.begin() as connection:  # in place: there is room in its page
            connection.execute(text("UPDATE worker SET heartbeat_at = now() - interval '1 hour' WHERE id = 'gone:1'"))
        release.set()
        release_writer.set()
        await until(lambda: full(log, "completer") is not None, description="the completer meets the full disk")
        await until(lambda: full(log, "rescuer") is not None, description="the rescuer meets the full disk")
        assert set(jobs.statuses().values()) == {JobStatus.RUNNING}
        assert [jobs.get(job_id)["attempt"] for job_id in (holding, writing, lost)] == [1, 1, 1]
        event = full(log, "completer")
        assert event is not None
        record = describe(event)
        assert "No space left on device" in record.message % record.arguments

        disk.free()
        await until(
            lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="all that was held up is done"
        )
        assert [jobs.get(job_id)["attempt"] for job_id in (holding, writing, lost)] == [1, 2, 2]
        outcomes = [[row["outcome"] for row in jobs.attempts(job_id)] for job_id in (holding, writing, lost)]
        assert outcomes == [[], ["failed"], ["lost"]]
        assert not log.of(HeartbeatFailing)
        (rescheduled,) = log.of(JobRescheduled)
        assert "DiskFull" in str(rescheduled.error)

        accepted = enqueue(engine, *(plain.job(str(number), delay=timedelta(seconds=1)) for number in range(20)))
        disk.fill()
        with suppress(OperationalError), engine.connect() as connection:
            while True:
                connection.execute(_WRITE_LOG)
        await until(lambda: not server.is_running, description="the end of a server that cannot write its log")
        assert "PANIC" in server.log_path.read_text()
        refused_by_nobody = pytest.raises(OperationalError)
        with refused_by_nobody, Session(engine) as session, session.begin():
            session.add(plain.job(""))
        disk.free()
        server.start()
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="everything is done")
        assert set(accepted) <= set(jobs.statuses())
        assert jobs.count() == 23
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*), count(DISTINCT job_id) FROM effect")).one() == (1, 1)
        assert connection.execute(text("SELECT count(*) FROM worker WHERE id <> 'gone:1'")).scalar_one() == 0
    engine.dispose()
