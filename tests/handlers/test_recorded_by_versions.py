"""Of two versions of an application that run at once, the worker that started last decides the record of a type."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.events import JobTypesDiffer, WorkerStarted
from sa_jobqueue.statements import controls as settings
from sa_jobqueue.worker.background import controls
from sa_jobqueue.worker.background.controls import ControlReader
from sa_jobqueue.worker.signals import TickResult
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import Start, shared, until

pytestmark = [both_servers, pytest.mark.every_python]


def version(queue: str) -> JobQueue[Any]:
    """Return a version of the application, by the queue that it declares."""
    jobs = JobQueue()

    @jobs.handler("send", queue=queue)
    async def send() -> None: ...

    return jobs


def recorded(engine: Engine) -> str | None:
    with Session(engine) as session:
        return session.scalar(select(Job.JobType.queue))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "WRITE_AGAIN", 0.05)
    monkeypatch.setattr(controls, "REPORT_AGAIN", 0.0)


async def test_a_worker_reports_again_and_again_that_a_later_one_declares_its_type_otherwise(
    engine: Engine, start: Start
) -> None:
    async with start(version("old"), name="old") as old:
        await old.until(WorkerStarted)
        async with start(version("new"), name="new") as new:
            reports = await old.until(JobTypesDiffer, 3)
            assert {report.worker_id.partition(":")[0] for report in reports} == {"old"}
            assert reports[0].differences == {"send": {"queue": ("new", "old")}}
            assert recorded(engine) == "new"
            assert not new.of(JobTypesDiffer)


async def test_jobs_go_to_the_queue_of_the_old_version_after_a_new_one_was_rolled_back(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    async with start(version("old")) as old:
        await old.until(WorkerStarted)
        async with start(version("new")):
            await until(lambda: recorded(engine) == "new", description="the new version is recorded")
        await until(lambda: recorded(engine) == "old", description="the old version is recorded again")
        with engine.begin() as connection:
            (job_id,) = connection.execute(text("INSERT INTO job_queue (type_name) VALUES ('send') RETURNING id")).scalars()
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="an old worker runs it")


async def test_the_worker_that_started_last_records_its_types_again_if_another_overwrites_them(
    engine: Engine, start: Start
) -> None:
    """As a worker of the old version does that connects to the database again."""
    async with start(version("old")) as old:
        await old.until(WorkerStarted)
        async with start(version("new")) as new:
            await new.until(WorkerStarted)
            write(engine, "UPDATE job_type SET queue = 'old', priority = 7")
            await until(lambda: recorded(engine) == "new", description="the new version is recorded again")
            assert not new.of(JobTypesDiffer)


async def test_a_worker_sees_types_that_change_twice_between_two_ticks(
    async_engine: AsyncEngine, engine: Engine, jobs: Jobs
) -> None:
    """As a worker that starts writes them again which had not yet been registered when this one did."""
    jobs.add_worker(WORKER)
    parameters = {"worker_id": WORKER, "queues": [], "types": ["send"]}

    def write_new() -> TickResult:
        with engine.begin() as connection:
            connection.execute(text("UPDATE job_type SET queue = 'new'"))
            return TickResult(settings=connection.execute(settings.of_worker(Job), parameters).all()[0].hash)

    reader = ControlReader(shared(async_engine, version("old")), on_change=lambda _: None, is_notified=lambda: True)
    reading = asyncio.create_task(reader.run())
    try:
        await until(lambda: recorded(engine) == "old", description="it has recorded its type")
        for has_new_connection in (False, False, True, False):
            tick = await asyncio.to_thread(write_new)
            if has_new_connection:
                reader.declare_again()
            else:
                reader.ticked(tick)
            await until(lambda: recorded(engine) == "old", description="it has recorded its type again")
    finally:
        await cancelled(reading)
