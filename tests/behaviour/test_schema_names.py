"""A queue whose schema has any name that PostgreSQL takes: every writer, worker, command and report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import JobMixin, JobQueue, JobStatus, Worker, aio, enqueue, enqueue_many, operations, wait_chain
from sa_jobqueue.events import JobStarted
from sa_jobqueue.migrations import runner
from sa_jobqueue.models.base import verbatim
from sa_jobqueue.observe.maintenance import storage_settings
from sa_jobqueue.registry.schedules import Schedule
from tests.fixtures.commands import Run, document, run
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.schemas import NastyJob, approved, double, jobs
from tests.fixtures.transactions import call, scalars, write
from tests.fixtures.workers import PATIENCE, quick, working

__all__ = ["run"]  # a fixture

pytestmark = [own_database, both_servers]

NEVER = timedelta(minutes=9)
RESERVED = "SELECT word FROM pg_get_keywords() WHERE catcode <> 'U' ORDER BY catcode DESC, word"
"""The words that SQL does not take for every name as they are."""
APP = ("--app", "tests.fixtures.schemas:jobs")


def queue_in(schema: str) -> JobQueue[Any]:
    """Return a queue with a handler, in a schema."""

    class Base(DeclarativeBase):
        pass

    class Job(JobMixin, Base, queue_schema=schema):
        pass

    queue = JobQueue(Job)

    @queue.handler("double")
    def double(number: int) -> int:
        return 2 * number

    return queue


def by_view(queue: JobQueue[Any], session: Session) -> None:
    """Enqueue a job through the view."""
    view = queue.model.__jobqueue__.qualified("job_queue")
    session.execute(verbatim(f"INSERT INTO {view} (type_name, input) VALUES ('double', '7')"))


def writers(queue: JobQueue[Any]) -> dict[str, Callable[[Session], object]]:
    """Return every way to enqueue one job."""
    handler = queue["double"]
    return {
        "session.add": lambda session: session.add(handler.job(1)),
        "enqueue": lambda session: handler.enqueue(session, 2),
        "deduplicated": lambda session: enqueue(session, handler.job(3), deduplicate="a"),
        "enqueue_many": lambda session: enqueue_many(session, [handler.job(4)]),
        "copy": lambda session: handler.enqueue_many(session, [5]),
        "deduplicated copy": lambda session: handler.enqueue_many(session, [6], deduplicate_by=str),
        "view": lambda session: by_view(queue, session),
    }


FEW = ("between", "collation", "order", "user")
"""One of each kind that PostgreSQL distinguishes, and one that SQLAlchemy does not know as reserved."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", ["few", *(pytest.param(share, marks=pytest.mark.long) for share in range(8))])
def test_every_writer_works_in_a_schema_called_by_a_reserved_word(engine: Engine, share: Any) -> None:
    words = scalars(engine, RESERVED)
    assert len(words) > 150
    assert set(FEW) <= set(words)
    for word in FEW if share == "few" else words[share::8]:
        queue = queue_in(word)
        with engine.begin() as connection:
            runner.upgrade(connection, queue.model.__jobqueue__)
        for writer in writers(queue).values():
            call(engine, writer)
        with Session(engine) as session:
            assert sorted(session.scalars(select(queue.model.input))) == [1, 2, 3, 4, 5, 6, 7], word
        with engine.begin() as connection:
            runner.downgrade(connection, queue.model.__jobqueue__, to_version=0)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "psycopg2"])
async def test_every_writer_works_with_every_driver(engine: Engine, driver: str) -> None:
    NastyJob.metadata.create_all(engine)
    url = engine.url.set(drivername=f"postgresql+{driver}")
    if driver == "asyncpg":
        async_engine = create_async_engine(url)
        for write in writers(jobs).values():
            async with AsyncSession(async_engine) as session, session.begin():
                await session.run_sync(write)
        await async_engine.dispose()
    else:
        other_engine = create_engine(url)
        for write in writers(jobs).values():
            with Session(other_engine) as sync_session, sync_session.begin():
                write(sync_session)
        other_engine.dispose()
    with Session(engine) as session_:
        assert sorted(session_.scalars(select(NastyJob.input))) == [1, 2, 3, 4, 5, 6, 7]
    await Worker(jobs, engine).run_until_idle()
    with Session(engine) as session_:
        assert sorted(session_.scalars(select(NastyJob.output))) == [2, 4, 6, 8, 10, 12, 14]


async def test_a_sleeping_worker_and_a_waiting_caller_are_notified(engine: Engine) -> None:
    NastyJob.metadata.create_all(engine)
    options = quick(poll_interval=NEVER)
    async with working(Worker(jobs, engine, options=options)) as log:
        with Session(engine) as session, session.begin():
            first = double.job(1)
            session.add(first)
        patience = timedelta(seconds=PATIENCE)
        result = await asyncio.to_thread(lambda: wait_chain(engine, first, timeout=patience, poll_interval=NEVER))
        assert result.output == 2
        with Session(engine) as session, session.begin():
            second = approved.job(2)
            session.add(second)
        await log.until(JobStarted, 2)
        assert call(engine, operations.send_event, "approved:2", {"by": "ann"}, model=NastyJob)
        async with asyncio.timeout(PATIENCE):
            async_engine = create_async_engine(engine.url)
            assert (await aio.wait_chain(async_engine, second, timeout=patience, poll_interval=NEVER)).output == {
                "by": "ann"
            }
            await async_engine.dispose()


def test_operations_and_reports_work_in_a_schema_of_any_name(engine: Engine) -> None:
    NastyJob.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        pending = double.job(1)
        session.add(pending)
        operations.upsert_schedule(
            session, Schedule(name="nightly", cron="0 3 * * *", type_name="double", input=3), model=NastyJob
        )
    with Session(engine) as session, session.begin():
        assert operations.explain_job(session, pending.id, model=NastyJob).job_id == pending.id
        assert operations.cancel_jobs(session, [pending.id], model=NastyJob).changed == 1
        assert [job.status for job in operations.list_jobs(session, model=NastyJob).items] == [JobStatus.CANCELLED]
    settings = storage_settings(engine, model=NastyJob)
    assert [setting.current for setting in settings] == [setting.recommended for setting in settings]
    with engine.begin() as connection:
        for setting in settings:
            connection.execute(verbatim(setting.sql))


@pytest.mark.slow
def test_every_command_works_in_a_schema_of_any_name(engine: Engine, run: Run) -> None:
    run("migrate", "upgrade", *APP)
    assert document(run("migrate", "version", "--json", *APP))["version"] == 1
    run("grants", "--apply", "--roles", "nasty_schema", *APP)
    job_id = document(run("enqueue", "double", "21", "--json", *APP))["id"]
    run("worker", "tests.fixtures.schemas:jobs", "--until-idle")
    assert document(run("jobs", "show", job_id, "--json", *APP))["job"]["output"] == 42
    for command in (
        ("health", "--json"),
        ("explain", job_id),
        ("trace", job_id),
        ("queues", "list"),
        ("workers", "list"),
        ("vacuum",),
        ("reindex", "--all"),
        ("grants",),
        ("migrate", "sql"),
    ):
        run(*command, *APP)
    checks = {check["name"]: check for check in document(run("doctor", "--json", *APP, status=1))["checks"]}
    assert [checks[name]["status"] for name in ("schema", "storage")] == ["ok", "ok"]
    write(engine, update(NastyJob).values(chain_completed_at=datetime(2020, 1, 1, tzinfo=UTC)))
    run("prune", "--older-than", "1s", *APP)
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(NastyJob)) == 0
    run("migrate", "downgrade", "--to", "0", "--yes", *APP)
