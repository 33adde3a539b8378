"""A worker that has lost a part, or the connection of one, claims no jobs that it could not finish."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from sa_jobqueue import JobQueue, JobStatus, Worker
from sa_jobqueue.events import ComponentFailed
from sa_jobqueue.worker.finish.completer import Completer
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import scalar
from tests.fixtures.workers import EventLog, Start, quick, until, working


def simple() -> JobQueue[Any]:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("test")
    async def test(payload: Any) -> None: ...

    return queue


async def test_a_part_whose_task_is_cancelled_is_restarted_and_reported(jobs: Jobs, start: Start) -> None:
    loop = asyncio.get_running_loop()

    def parts() -> dict[str, asyncio.Task[Any]]:
        tasks = [task for task in asyncio.all_tasks(loop) if getattr(task.get_coro(), "__qualname__", "") == "supervise"]
        return {task.get_name(): task for task in tasks}

    async with start(simple()) as log:
        await until(lambda: {"claimer", "completer", "unblocker", "rescuer"} <= parts().keys(), description="all parts run")
        for name, task in parts().items():
            task.cancel()
            await until(partial(_contains, log, name), description=f"{name} is reported")
            job_id = jobs.add()
            await until(partial(_is_completed, jobs, job_id), description=f"a job runs after {name} was cancelled")


def _contains(log: EventLog, name: str) -> bool:
    return name in {event.component for event in log.of(ComponentFailed)}


def _is_completed(jobs: Jobs, job_id: Any) -> bool:
    return jobs.status(job_id) is JobStatus.COMPLETED


async def test_a_worker_that_cannot_write_results_claims_nothing(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with too many workers for the server's connections: jobs claimed then stayed `running` without a handler."""
    refuses, tried = [True], asyncio.Event()
    run = Completer.run

    async def without_connection(self: Completer) -> None:
        if refuses[0]:
            tried.set()
            raise OperationalError("", None, Exception("sorry, too many clients already"))
        await run(self)

    monkeypatch.setattr(Completer, "run", without_connection)
    ids = [jobs.add() for _ in range(20)]
    queue = simple()
    worker = Worker(queue, engine, options=quick(poll_interval=timedelta(milliseconds=20)))
    async with working(worker) as log:
        for _ in range(3):
            tried.clear()
            await asyncio.wait_for(tried.wait(), 30)
        assert scalar(engine, "SELECT count(*) FROM job WHERE attempt > 0") == 0
        assert "completer" in {event.component for event in log.of(ComponentFailed)}
        refuses[0] = False
        await until(lambda: {jobs.status(job_id) for job_id in ids} == {JobStatus.COMPLETED}, description="all complete")
