"""The fixture of the suite: one handler, run by workers until nothing is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus
from sa_jobqueue.operations import send_event
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import drain


def at_once(attempt: int, error: BaseException) -> timedelta:
    """Retry without a delay."""
    return timedelta(0)


class Flow:
    """Handlers of one queue, what they called, and the rows of their jobs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.queue: JobQueue[Any] = JobQueue()
        self.called: list[Any] = []
        self._jobs = Jobs(engine)
        self.job_id: Any = None

    def call(self, name: str, result: Any = None) -> Callable[[], Any]:
        """Return a function for a step, which notes that it is called."""

        async def step() -> Any:
            self.called.append(name)
            return result

        return step

    def fail(self, error: Exception) -> Callable[[], Any]:
        """Return a function for a step, which raises."""

        async def step() -> Any:
            self.called.append(str(error))
            raise error

        return step

    def crash(self, ctx: AttemptContext, *attempts: int) -> None:
        """Fail some attempts, by default the first."""
        if ctx.attempt in (attempts or (1,)):
            raise RuntimeError("crash")

    def handler(self, function: Callable[..., Any], **options: Any) -> Any:
        """Register a handler, which is retried without a delay."""
        declared: dict[str, Any] = {"retry": at_once, "max_attempts": 5} | options
        return self.queue.handler(function.__name__, **declared)(function)

    def enqueue(self, name: str, payload: Any = None, **options: Any) -> Any:
        """Enqueue a job and return its id."""
        (self.job_id,) = enqueue(self.engine, self.queue.job(name, payload, **options))
        return self.job_id

    async def run(self, function: Callable[..., Any], payload: Any = None, **options: Any) -> Any:
        """Register a handler, run a job of it until nothing is due, and return its row."""
        self.handler(function, **options)
        self.enqueue(function.__name__, payload)
        return await self.go_on()

    async def go_on(self) -> Any:
        """Run until nothing is due, and return the row of the last job."""
        await drain(self.queue, self.engine)
        return self.row()

    def row(self, job_id: Any = None) -> Any:
        return self._jobs.get(self.job_id if job_id is None else job_id)

    def status(self, job_id: Any = None) -> JobStatus:
        return self._jobs.status(self.job_id if job_id is None else job_id)

    def error(self) -> str:
        """Return the name of the class of the job's last error, and its message."""
        error = self.row()["last_error"]
        return f"{error['type'].rpartition('.')[2]}: {error['message']}"

    def send(self, name: str, payload: Any = None) -> bool:
        return call(self.engine, send_event, name, payload)

    def execute(self, statement: str, **parameters: Any) -> None:
        write(self.engine, statement, parameters)

    def wake(self) -> None:
        """Make jobs due that sleep or wait."""
        self.execute("UPDATE job SET scheduled_at = now() WHERE status = 'pending'")

    def steps(self) -> list[str]:
        """Return the names of the recorded steps."""
        with Session(self.engine) as session:
            return sorted(session.scalars(select(Job.Step.name).where(Job.Step.completed_at.is_not(None))))


@pytest.fixture
def flow(engine: Engine) -> Flow:
    return Flow(engine)
