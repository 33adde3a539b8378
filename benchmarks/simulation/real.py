"""The jobs of a workload run for real: workers on a server, handlers that wait by timers, a commit for each job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from benchmarks.place import Place
from benchmarks.simulation.model import Started
from benchmarks.simulation.workload import Arrival, Workload
from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.events import Event, EventBus, WorkerStarted
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings

_TYPE: Final = "simulated"
_PATIENCE: Final = 60.0


def run(place: Place, workload: Workload, coming: Sequence[Arrival]) -> list[Started]:
    """Return when each job was started, in that order; it arrived when its commit had returned."""
    with Session(place.engine()) as session, session.begin():
        for queue, weight in workload.weights.items():
            upsert_queue(session, QueueSettings(name=queue, weight=weight))
    return asyncio.run(_Run(workload, coming).run(place))


class _Run:
    def __init__(self, workload: Workload, coming: Sequence[Arrival]) -> None:
        self._workload = workload
        self._coming = coming
        self._committed: dict[int, float] = {}
        self._started: dict[int, tuple[float, int]] = {}
        self._done = asyncio.Event()

    async def run(self, place: Place) -> list[Started]:
        ready = asyncio.Semaphore(0)

        def on_event(event: Event) -> None:
            if isinstance(event, WorkerStarted):
                ready.release()

        engine, events = place.async_engine(size=10), EventBus()
        events.subscribe(on_event)
        options = WorkerOptions(queues=list(self._workload.weights), concurrency=self._workload.slots)
        workers = [
            Worker(self._queue(number), engine, options=options, events=events) for number in range(self._workload.workers)
        ]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        for _ in workers:
            await asyncio.wait_for(ready.acquire(), _PATIENCE)
        began = await self._produce(engine)
        await asyncio.wait_for(self._done.wait(), _PATIENCE + self._workload.seconds)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        await engine.dispose()
        started = [
            Started(Arrival(self._committed[number] - began, arrival.kind, arrival.seconds), at - began, worker)
            for number, arrival in enumerate(self._coming)
            for at, worker in (self._started[number],)
        ]
        return sorted(started, key=lambda start: start.at)

    def _queue(self, worker: int) -> JobQueue[Any]:
        queue = JobQueue()

        @queue.handler(_TYPE)
        async def wait(number: int) -> None:
            self._started[number] = time.monotonic(), worker
            if len(self._started) == len(self._coming):
                self._done.set()
            await asyncio.sleep(self._coming[number].seconds)

        return queue

    async def _produce(self, engine: AsyncEngine) -> float:
        """Commit each job when it is its time, those of the same instant together; return when it began."""
        began = time.monotonic()
        place = 0
        while place < len(self._coming):
            await asyncio.sleep(max(0.0, began + self._coming[place].at - time.monotonic()))
            until = place + 1
            while until < len(self._coming) and self._coming[until].at <= self._coming[place].at:
                until += 1
            async with AsyncSession(engine) as session:
                for number in range(place, until):
                    kind = self._coming[number].kind
                    session.add(Job(_TYPE, number, queue=kind.queue, priority=kind.priority))
                await session.commit()
            self._committed |= dict.fromkeys(range(place, until), time.monotonic())
            place = until
        return began
