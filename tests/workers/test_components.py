"""A component that fails is restarted, and one that keeps failing says why."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sa_jobqueue.events import EventBus
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.worker.component import Component, supervise
from tests.fixtures.workers import until


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
