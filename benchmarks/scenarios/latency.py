"""From the commit that enqueued a job to the start of its handler, in another process, at a steady rate."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from benchmarks import rows
from benchmarks.harness import Case, Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.events import Event, EventBus, JobCompleted, WorkerStarted

RATE: Final = 100
_POLL: Final = timedelta(milliseconds=100)
_MOST: Final = 500
_PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Orders:
    """Settings of the worker's process."""

    url: str
    jobs: int
    listen: bool


def scenario() -> Scenario:
    """Return the cases."""
    poll = f"polling every {_POLL.total_seconds() * 1000:.0f} ms"
    return Scenario(
        name="latency",
        says=f"{RATE} jobs/s by session.add and commit; from the return of the commit to the first line of the handler",
        cases=(
            Case(name="listening", run=_steady(listen=True), most=_MOST, rated=False),
            Case(name=poll, run=_steady(listen=False), most=_MOST, rated=False),
        ),
    )


def _steady(*, listen: bool) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        mine, theirs = multiprocessing.Pipe()
        orders = Orders(place.url, jobs, listen)
        # Spawned: a fork would inherit this process's connections.
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(orders, theirs))
        worker.start()
        try:
            assert _next(mine) == "started"
            with watch:
                committed = _produce(place, jobs)
                started = _next(mine)
        finally:
            worker.join(_PATIENCE)
            worker.kill()
        waits = [(started[number] - committed[number]) * 1000 for number in range(jobs)]
        # Two processes share the work, and the worker's own statements are not seen from here.
        watch.round_trips = None
        watch.figures = {f"p{percent}_ms": percentile(waits, percent) for percent in (50, 95, 99)} | {"max_ms": max(waits)}
        return jobs

    return run


def _next(pipe: Pipe) -> Any:
    if not pipe.poll(_PATIENCE):
        raise TimeoutError("the worker's process did not answer")
    return pipe.recv()


def _produce(place: Place, jobs: int) -> list[float]:
    engine = place.engine(size=1)
    committed = []
    with Session(engine) as session:
        session.connection()
        session.commit()
        began = time.monotonic()
        for number in range(jobs):
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            session.add(Job(rows.JOB_TYPE, {"number": number}))
            session.commit()
            committed.append(time.monotonic())
    engine.dispose()
    return committed


def work(orders: Orders, pipe: Pipe) -> None:
    """Run a worker until it has completed its jobs, and send back when each was started: the spawned process's main."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    pipe.send(asyncio.run(_work(orders, pipe)))


async def _work(orders: Orders, pipe: Pipe) -> dict[int, float]:
    queue, events = JobQueue(), EventBus()
    started: dict[int, float] = {}
    left = orders.jobs

    @queue.handler(rows.JOB_TYPE)
    async def handle(job: Any) -> None:
        # One clock for all processes of a machine.
        started[job["number"]] = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal left
        if isinstance(event, WorkerStarted):
            # A moment for it to listen and to fall idle.
            asyncio.get_running_loop().call_later(0.5, pipe.send, "started")
        elif isinstance(event, JobCompleted):
            left -= 1
            if left == 0:
                worker.stop()

    events.subscribe(on_event)
    engine = create_async_engine(orders.url)
    # Listening, it polls as rarely as by default: what is fast then is due to the notifications.
    poll = WorkerOptions().poll_interval if orders.listen else _POLL
    options = WorkerOptions(concurrency=10, listen=orders.listen, poll_interval=poll)
    worker = Worker(queue, engine, options=options, events=events)
    await worker.run()
    await engine.dispose()
    return started
