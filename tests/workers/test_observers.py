"""The event bus is for observers: a worker does the same without any, and with those that fail."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue import JobQueue, JobStatus, Worker
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.events import Event, EventBus
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, quick, until

pytestmark = pytest.mark.every_python

NEVER = timedelta(minutes=10)
"""A poll interval that no test waits for."""


@dataclass
class Payload:
    number: int


class Silent(EventBus):
    """Drops everything."""

    def subscribe(self, subscriber: Any, **options: Any) -> Callable[[], None]:
        return lambda: None

    def has_subscribers(self, kind: type[Event]) -> bool:
        return False

    def emit(self, event: Event) -> None:
        pass

    def emit_many(self, events: Sequence[Event]) -> None:
        pass

    def begin(self, attempt: Any) -> None:
        pass


def failing() -> EventBus:
    """Return a bus all of whose subscribers and hooks fail."""

    def fail(*_: Any) -> Any:
        raise LookupError("an observer")

    def cancel(*_: Any) -> Any:
        raise asyncio.CancelledError

    bus = EventBus()
    for broken in (fail, cancel):
        bus.subscribe(broken)
        bus.subscribe(broken, many=broken)
        bus.subscribe(lambda event: None, condition=broken)
        bus.on_attempt_start(broken)
    return bus


@pytest.fixture(params=[Silent, failing])
def events(request: pytest.FixtureRequest) -> EventBus:
    bus: EventBus = request.param()
    return bus


def execute(engine: Engine, statement: str) -> None:
    write(engine, statement)


async def complete_all(engine: Engine, jobs: Jobs, workers: Iterable[Worker]) -> None:
    """Run workers until every job is completed."""
    workers = list(workers)
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.wait_for(asyncio.gather(*runs), PATIENCE)


@pytest.mark.slow
async def test_a_queue_limit_has_capacity_again_when_a_job_ends(engine: Engine, jobs: Jobs, events: EventBus) -> None:
    queue, running, most = JobQueue(), 0, 0

    @queue.handler("one")
    async def one() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    execute(engine, "INSERT INTO queue (name, global_concurrency) VALUES ('default', 1)")
    # A worker that is not notified of the end of a job tries again after half a second: 40 s for all of these.
    enqueue(engine, *(queue.job("one") for _ in range(80)))
    await complete_all(engine, jobs, [Worker(queue, engine, options=quick(poll_interval=NEVER), events=events)])
    assert most == 1


async def test_run_until_idle_ends_when_the_worker_is_idle(engine: Engine, jobs: Jobs, events: EventBus) -> None:
    queue = JobQueue()

    @queue.handler("one")
    async def one() -> None:
        pass

    @queue.handler("broken", max_attempts=1)
    async def broken() -> None:
        raise ValueError

    first = queue["one"].job()
    enqueue(engine, first, queue.job("one", blockers=[first]), queue.job("broken"))
    await asyncio.wait_for(Worker(queue, engine, options=quick(), events=events).run_until_idle(), PATIENCE)
    assert sorted(jobs.statuses().values()) == [JobStatus.COMPLETED, JobStatus.COMPLETED, JobStatus.DEAD]


async def test_objects_of_an_attempt_are_freed_without_the_garbage_collector(engine: Engine) -> None:
    queue, references = JobQueue(), list[weakref.ref[Any]]()

    @queue.handler("one")
    async def one(payload: Payload, ctx: AttemptContext) -> None:
        references.extend([weakref.ref(ctx), weakref.ref(payload)])

    enqueue(engine, *(one.job(Payload(number)) for number in range(20)))
    gc.disable()  # cycles would be found by it sooner or later, for a tenth of the worker's CPU time
    try:
        await Worker(queue, engine, options=quick()).run_until_idle()
        assert len(references) == 40
        assert [reference() for reference in references if reference() is not None] == []
    finally:
        gc.enable()
