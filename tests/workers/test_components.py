"""A component that fails is restarted, and one that keeps failing says why."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.events import EventBus, HeartbeatFailing
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.worker.background.pruner import Pruner
from sa_jobqueue.worker.component import Component, Periodic, supervise
from tests.fixtures.workers import PATIENCE, quick, until, working


class Failing(Component):
    """Fails some times, then runs."""

    name = "claimer"

    def __init__(self, times: int) -> None:
        self.times = times
        self.runs = asyncio.Event()

    async def run(self) -> None:
        if self.times:
            self.times -= 1
            raise ValueError("no")
        self.runs.set()
        await asyncio.Event().wait()


async def test_a_component_has_a_failure_from_its_third_in_a_row_until_it_runs_for_a_while() -> None:
    restart = Backoff(base=timedelta(milliseconds=1), cap=timedelta(milliseconds=50))
    for times, failure in ((2, None), (3, "no")):
        component = Failing(times)
        task = asyncio.create_task(supervise(component, EventBus(), restart=restart))
        await asyncio.wait_for(component.runs.wait(), 30)
        assert (component.failure and str(component.failure)) == failure
        await until(lambda component=component: component.failure is None)  # type: ignore[misc]
        task.cancel()


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [ValueError("a\x00b\ud800"), _MuteError()], ids=["no text", "no message"])
async def test_a_failure_that_the_database_cannot_store_stops_no_heartbeat(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(_: Pruner) -> None:
        raise error

    monkeypatch.setattr(Pruner, "run", fail)
    jobs = JobQueue()

    @jobs.handler("test")
    async def test() -> None: ...

    def failure() -> str | None:
        with engine.connect() as connection:
            failure_text: str | None = connection.scalar(text("SELECT failure FROM worker"))
            return failure_text

    async with working(Worker(jobs, engine, options=quick())) as log:
        await until(lambda: failure() is not None)
        assert (failure() or "").startswith(f"pruner: {type(error).__name__}: ")
    assert not log.of(HeartbeatFailing)


async def test_a_periodic_part_calls_its_function_until_it_returns_true() -> None:
    answers = iter([None, False, True, False])
    await asyncio.wait_for(Periodic("memory guard", lambda: next(answers), 0.0).run(), PATIENCE)
    assert next(answers) is False
