"""One worker process for several databases: its cost while idle, and whether a dead database delays the others."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from benchmarks.harness import Case, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import JobQueue
from sa_jobqueue.events import WorkerStarted
from sa_jobqueue.migrations import runner
from sa_jobqueue.testing.databases import throw_away_database
from sa_jobqueue.worker import WorkerGroup

_SETTLING_SECONDS: Final = 20.0
_IDLE_SECONDS: Final = 10.0
_PATIENCE: Final = 120.0
_SILENT: Final = "postgresql+psycopg://postgres@192.0.2.1/shop"
"""An address of documentation, from which nothing answers."""
_OPEN: Final = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sa_jobqueue%'"


def scenario() -> Scenario:
    """Return the cases."""
    alive = {"one database": (1, False), "50 databases": (50, False), "49, one refuses and one is silent": (49, True)}
    return Scenario(
        name="several databases",
        says="one worker process: its connections and CPU while idle, then the time from a commit to the job's start",
        cases=[
            Case(name=name, run=partial(_run, *how), prepare=lambda *_: None, rated=False, most_rounds=1)
            for name, how in alive.items()
        ],
        jobs=100,
    )


def _run(alive: int, has_dead: bool, place: Place, watch: Stopwatch, jobs: int) -> int:
    with ExitStack() as stack:
        urls = [stack.enter_context(throw_away_database(place.url)) for _ in range(alive)]
        for url in urls:
            with create_engine(url, poolclass=NullPool).begin() as connection:
                runner.upgrade(connection)
        dead = [str(make_url(place.url).set(database="nowhere").render_as_string(hide_password=False)), _SILENT]
        engines = [create_engine(url) for url in urls + (dead if has_dead else [])]
        for engine in engines:
            stack.callback(engine.dispose)
        asyncio.run(_measure(engines, engines[:alive], place, watch, jobs))
    return jobs


async def _measure(engines: list[Engine], alive: list[Engine], place: Place, watch: Stopwatch, jobs: int) -> None:
    queue: JobQueue[Any] = JobQueue()
    started: asyncio.Queue[float] = asyncio.Queue()

    @queue.handler("job")
    async def job() -> None:
        started.put_nowait(time.monotonic())

    group, up = WorkerGroup(queue, engines), 0
    is_up = asyncio.Event()

    def seen(event: object) -> None:
        nonlocal up
        up += isinstance(event, WorkerStarted)
        if up == len(alive):
            is_up.set()

    def enqueue(engine: Engine) -> float:
        with Session(engine) as session:
            job.enqueue(session)
            session.commit()
        return time.monotonic()

    group.events.subscribe(seen)
    running = asyncio.create_task(group.run())
    await asyncio.wait_for(is_up.wait(), _PATIENCE)
    await asyncio.sleep(_SETTLING_SECONDS)
    watch.round_trips, watch.is_divided = None, False
    cpu = time.thread_time()  # of the workers' loop: the benchmark's other threads draw its progress
    with watch:
        await asyncio.sleep(_IDLE_SECONDS)
    watch.figures["core_percent"] = (time.thread_time() - cpu) / watch.seconds * 100
    watch.figures["connections"] = float(await asyncio.to_thread(place.scalar, _OPEN))
    delays = []
    for number in range(jobs):
        committed = await asyncio.to_thread(enqueue, alive[number % len(alive)])
        delays.append((await asyncio.wait_for(started.get(), _PATIENCE)) - committed)
    watch.figures["start_p50_ms"] = statistics.median(delays) * 1000
    watch.figures["start_most_ms"] = max(delays) * 1000
    group.stop()
    await running
