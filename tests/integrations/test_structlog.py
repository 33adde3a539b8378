"""The job in what structlog writes during an attempt, from sync and async handlers and what they call."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from structlog.contextvars import get_contextvars, merge_contextvars

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.integrations.structlog import bind_jobs
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python


async def test_every_structlog_entry_of_an_attempt_has_its_job_fields(engine: Engine) -> None:
    jobs = JobQueue()
    entries = structlog.testing.CapturingLogger()
    log = structlog.wrap_logger(entries, processors=[merge_contextvars, lambda _, __, fields: ((), fields)])

    @jobs.handler("sync")
    def sync(number: int) -> None:
        log.info("sync", number=number)

    @jobs.handler("async", queue="other")
    async def asynchronous(number: int) -> None:
        await asyncio.create_task(below(number))

    async def below(number: int) -> None:
        await asyncio.sleep(0)
        log.info("async", number=number)

    bind_jobs(jobs)
    with Session(engine) as session, session.begin():
        job_by_number = {number: (sync if number % 2 else asynchronous).job(number) for number in range(6)}
        session.add_all(job_by_number.values())
        session.flush()
        expected = {
            number: {"job_id": str(job.id), "job_type": job.type_name, "job_queue": job.queue, "job_attempt": 1}
            for number, job in job_by_number.items()
        }
    worker = Worker(jobs, engine, options=quick(concurrency=6))
    await worker.run_until_idle()
    entry_by_number = {call.kwargs.pop("number"): call.kwargs for call in entries.calls}
    assert len(entries.calls) == 6
    for number, fields in entry_by_number.items():
        assert fields == expected[number] | {"worker_id": worker.id, "event": "sync" if number % 2 else "async"}
    assert get_contextvars() == {}
