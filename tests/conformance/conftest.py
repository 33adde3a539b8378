"""The fixture of the suite: one handler, run by workers until nothing is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue import AttemptContext, JobQueue
from sa_jobqueue.operations import send_event
from sa_jobqueue.policies.retry import immediately
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain


class Flow:
    """Handlers of one queue, what they called, and the row of their job."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.queue: JobQueue[Any] = JobQueue()
        self.called: list[Any] = []
        self.job_id: Any = None

    def call(self, name: str, result: Any = None) -> Callable[[], Any]:
        """Return a function for a step, which notes that it is called."""

        async def step() -> Any:
            self.called.append(name)
            return result

        return step

    def crash(self, ctx: AttemptContext, attempt: int = 1) -> None:
        """Fail an attempt."""
        if ctx.attempt == attempt:
            raise RuntimeError("crash")

    def handler(self, function: Callable[..., Any], max_attempts: int = 5) -> Any:
        """Register a handler, which is retried without a delay."""
        return self.queue.handler(function.__name__, retry=immediately, max_attempts=max_attempts)(function)

    async def run(self, function: Callable[..., Any], **options: Any) -> Any:
        """Register a handler, run a job of it until nothing is due, and return its row."""
        self.handler(function)
        (self.job_id,) = enqueue(self.engine, self.queue.job(function.__name__, **options))
        return await self.go_on()

    async def go_on(self) -> Any:
        """Run until nothing is due, and return the row of the job."""
        await drain(self.queue, self.engine)
        return Jobs(self.engine).get(self.job_id)

    def send(self, name: str, payload: Any = None) -> bool:
        return call(self.engine, send_event, name, payload)


@pytest.fixture
def flow(engine: Engine) -> Flow:
    return Flow(engine)
