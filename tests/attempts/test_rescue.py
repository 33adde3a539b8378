"""Jobs of a lost worker are rescued in batches; completions that arrive too late are fenced, at every retry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Engine, func, text, update

from sa_jobqueue import JobQueue, JobStatus
from sa_jobqueue.events import ComponentFailed, JobStarted
from sa_jobqueue.worker.background.rescuer import RESCUE_BATCH
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import ManualWorker, Start, until

pytestmark = pytest.mark.every_python

_REFUSE_COMPLETIONS = """
CREATE FUNCTION refuse_completion() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RAISE EXCEPTION ''no completion now'' USING ERRCODE = ''53100''; END';
CREATE TRIGGER outage BEFORE UPDATE ON job FOR EACH ROW WHEN (NEW.status = 'completed') EXECUTE FUNCTION refuse_completion();
"""


async def test_jobs_of_a_lost_worker_are_rescued_in_batches_without_pauses(engine: Engine, jobs: Jobs, start: Start) -> None:
    """Hundreds are due again after the first rescue run; the next tick here would be five minutes later."""
    lost = jobs.add_many(2 * RESCUE_BATCH + 50)
    jobs.add_worker("gone:1", silent_for=3600)
    with engine.begin() as connection:
        running = {"status": JobStatus.RUNNING, "attempt": 1, "leased_by": "gone:1", "started_at": func.now()}
        connection.execute(update(jobs.table).where(jobs.table.c.id.in_(lost)).values(running))
    queue = JobQueue()

    @queue.handler("another")
    async def another() -> None: ...

    async with start(queue, heartbeat_interval=timedelta(minutes=5), heartbeat_timeout=timedelta(minutes=11)):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.PENDING}, description="all of them are rescued")


async def test_a_completion_that_failed_in_an_outage_is_retried_and_fenced(
    engine: Engine, jobs: Jobs, start: Start, manual_worker: Callable[..., ManualWorker]
) -> None:
    queue, release = JobQueue(), asyncio.Event()

    @queue.handler("waits")
    async def waits() -> None:
        await release.wait()

    def run(ddl: str) -> None:
        write(engine, ddl)

    (job_id,) = enqueue(engine, waits.job())
    async with start(queue, heartbeat_timeout=timedelta(seconds=30)) as log:
        await log.until(JobStarted)
        # DDL in threads: it waits for the worker's open transactions, which this loop has to end.
        await asyncio.to_thread(run, _REFUSE_COMPLETIONS)
        release.set()
        await until(
            lambda: any(event.component == "completer" for event in log.of(ComponentFailed)),
            description="a failed completion",
        )
        jobs.add_worker("other:1")

        def rescue_and_claim() -> None:  # as another worker would
            with engine.begin() as connection:
                for then in (
                    {"status": JobStatus.PENDING, "leased_by": None},
                    {"status": JobStatus.RUNNING, "attempt": 2, "leased_by": "other:1"},
                ):
                    connection.execute(update(jobs.table).where(jobs.table.c.id == job_id).values(then))
                connection.execute(text("DROP TRIGGER outage ON job"))

        await asyncio.to_thread(rescue_and_claim)
        (later,) = enqueue(engine, waits.job())
        await until(lambda: jobs.status(later) is JobStatus.COMPLETED, description="what was queued behind it is written")
        row = jobs.get(job_id)
        assert (row["status"], row["attempt"], row["leased_by"]) == (JobStatus.RUNNING, 2, "other:1")
    assert jobs.get(job_id)["completed_at"] is None
