"""A steady load of light jobs beside reports that keep their transaction open: without a budget for them, and with one.

There are always more reports to do than slots. Each has written a row, waits, and holds vacuum back meanwhile; a vacuum runs
every other second. What counts is how old the oldest of those transactions is, what lies dead behind it, and whether the
light jobs still find a slot.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from benchmarks import rows, steady
from benchmarks.harness import Case, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import places
from benchmarks.peers.catalogue import OURS
from benchmarks.place import Place
from benchmarks.scenarios.session_handler import Effect
from benchmarks.statements import counting
from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.events import Event, EventBus, WorkerStarted
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings

NAME: Final = "workload budgets"
RATE: Final = 100
SECONDS: Final = 30
_SLOTS: Final = 10
_REPORT_SECONDS: Final = 3.0
_PATIENCE: Final = 60.0

_BUDGETS: Final[Mapping[str, tuple[bool, Mapping[str, Any]]]] = {
    "no reports": (False, {}),
    "reports without a budget": (True, {}),
    "reports, global_concurrency=1": (True, {"global_concurrency": 1}),
    "reports, one in ten seconds": (True, {"rate_limit": 6, "rate_burst": 1, "rate_period": timedelta(minutes=1)}),
}


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name=NAME,
        says=f"{RATE} light jobs/s for {SECONDS} s in {_SLOTS} slots; reports keep a transaction for {_REPORT_SECONDS:g} s",
        cases=[
            Case(
                name=name,
                run=partial(_run, reports, settings),
                prepare=lambda place, jobs: None,
                open_place=partial(places.open_for, OURS),
                rated=False,
                most_rounds=1,
            )
            for name, (reports, settings) in _BUDGETS.items()
        ],
        jobs=RATE * SECONDS,
    )


def _run(reports: bool, settings: Mapping[str, Any], place: Place, watch: Stopwatch, jobs: int) -> int:
    scale = min(1.0, jobs / (RATE * SECONDS))
    with place.begin() as connection:
        rows.PlainBase.metadata.create_all(connection)
    with Session(place.engine()) as session, session.begin():
        upsert_queue(session, QueueSettings(name="reports", **settings))
        # More than can be done: three times what all the slots could do.
        session.add_all(Job("report", queue="reports") for _ in range(int(reports * 3 * _SLOTS * SECONDS / _REPORT_SECONDS)))
    over, looks = threading.Event(), list[steady.Observation]()
    with counting(place) as counted:
        watcher = threading.Thread(target=steady.watch, args=(OURS.claim_like, counted, over, looks, scale))
        watcher.start()
        load = _Load(scale)
        try:
            with watch:
                began = asyncio.run(load.run(place, jobs))
        finally:
            over.set()
            watcher.join()
    watch.series = steady.series(began, looks, scale=scale, seconds=SECONDS, committed=load.committed, started=load.started)
    watch.figures = _figures(watch.series) | {"reports": float(load.reports)}
    return len(load.started)


class _Load:
    """One worker and one producer of light jobs in this process."""

    def __init__(self, scale: float) -> None:
        self.committed: dict[int, float] = {}
        self.started: dict[int, float] = {}
        self.reports = 0
        self._scale = scale

    async def run(self, place: Place, jobs: int) -> float:
        """Produce for so long, then stop the worker, its reports cut off; return when it began."""
        ready, events = asyncio.Event(), EventBus()

        def on_event(event: Event) -> None:
            if isinstance(event, WorkerStarted):
                ready.set()

        events.subscribe(on_event)
        engine = place.async_engine(size=_SLOTS + 2)
        options = WorkerOptions(queues=["light", "reports"], concurrency=_SLOTS, shutdown_timeout=timedelta(0))
        worker = Worker(self._queue(), engine, options=options, events=events)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(ready.wait(), _PATIENCE)
        began = await self._produce(engine, jobs)
        await asyncio.sleep(max(0.0, began + SECONDS * self._scale - time.monotonic()))
        worker.stop(now=True)
        await running
        await engine.dispose()
        return began

    def _queue(self) -> JobQueue[Any]:
        queue = JobQueue()

        @queue.handler("light")
        async def light(number: int) -> None:
            self.started[number] = time.monotonic()

        @queue.handler("report")
        async def report(payload: None, session: AsyncSession) -> None:
            await session.execute(insert(Effect).values(order_id="a report"))
            await asyncio.sleep(_REPORT_SECONDS * self._scale)
            self.reports += 1

        return queue

    async def _produce(self, engine: AsyncEngine, jobs: int) -> float:
        began = time.monotonic()
        for number in range(jobs):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            async with AsyncSession(engine) as session:
                session.add(Job("light", number, queue="light"))
                await session.commit()
            self.committed[number] = time.monotonic()
        return began


def _figures(series: list[dict[str, float | None]]) -> dict[str, float]:
    """Return the figures of the second half, after the start-up effects."""
    half = series[len(series) // 2 :]
    figures = {}
    for name in ("claim_ms", "wait_ms", "dead", "horizon_seconds"):
        if values := [value for one in half if (value := one[name]) is not None]:
            figures[name] = statistics.median(values)
    if values := [value for one in half if (value := one["dead"]) is not None]:
        figures["most_dead"] = max(values)
    figures["depth"] = max(one["depth"] or 0 for one in half)
    return figures
