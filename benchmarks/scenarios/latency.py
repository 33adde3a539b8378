"""From the commit that enqueued a job to the start of its handler, in another process, at a steady rate.

The worker notes when each of its claims began and ended, which shows why the slowest jobs waited.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, TypeAlias
from unittest import mock

from sqlalchemy import Connection, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session

from benchmarks import rows
from benchmarks.harness import Case, Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.scenarios.horizon import churn
from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.events import Event, EventBus, JobCompleted, WorkerStarted
from sa_jobqueue.worker.claim.claimer import Claimer

RATE: Final = 100
_FAST: Final = 1_000
_DEAD: Final = 20_000
_POLL: Final = timedelta(milliseconds=100)
_SECONDS: Final = 20
"""How long a case runs at most."""
_LATE: Final = 99
"""The percentile from which a job is among the slowest."""
_PATIENCE: Final = 60.0

_Run: TypeAlias = Callable[[Place, Stopwatch, int], int]
_Claims: TypeAlias = list[tuple[float, float]]
"""When each claim of the worker began and ended, in order."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Settings of the worker's process."""

    url: str
    jobs: int
    listen: bool


def scenario() -> Scenario:
    """Return the cases."""
    held_back = _HeldBack()
    poll = f"polling every {_POLL.total_seconds() * 1000:.0f} ms"
    return Scenario(
        name="latency",
        says=f"{RATE} jobs/s by session.add and commit; from the return of the commit to the first line of the handler; "
        "late_..._ms: what the slowest hundredth waited for",
        cases=(
            Case(name="listening", run=_steady(), most=_SECONDS * RATE, rated=False),
            Case(name=f"listening, {_FAST:,} jobs/s", run=_steady(rate=_FAST), most=_SECONDS * _FAST, rated=False),
            Case(
                name=f"listening, {_DEAD:,} dead rows held back",
                run=held_back.run,
                prepare=held_back.prepare,
                most=_SECONDS * RATE,
                rated=False,
            ),
            Case(name=poll, run=_steady(listen=False), most=5 * RATE, rated=False),
        ),
    )


class _HeldBack:
    """Dead rows that vacuum may not remove while a case runs."""

    def __init__(self) -> None:
        self._holder: Connection | None = None

    def prepare(self, place: Place, jobs: int) -> None:
        """Begin a transaction, and run and end jobs behind it."""
        place.clear()
        self._holder = place.engine(isolation_level="REPEATABLE READ").connect()
        self._holder.execute(select(func.txid_current_snapshot()))
        place.held = 1
        churn(place, _DEAD)

    def run(self, place: Place, watch: Stopwatch, jobs: int) -> int:
        """Measure, and end the transaction."""
        assert self._holder is not None
        with closing(self._holder):
            counted = _steady()(place, watch, jobs)
        place.held = 0
        return counted


def _steady(*, rate: int = RATE, listen: bool = True) -> _Run:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        mine, theirs = multiprocessing.Pipe()
        orders = Orders(place.url, jobs, listen)
        # Spawned: a fork would inherit this process's connections.
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(orders, theirs))
        worker.start()
        try:
            assert _next(mine) == "started"
            with watch:
                committed = _produce(place, jobs, rate)
                started, claims = _next(mine)
        finally:
            worker.join(_PATIENCE)
            worker.kill()
        waits = [(started[number] - committed[number]) * 1000 for number in range(jobs)]
        # Two processes share the work, and the worker's own statements are not seen from here.
        watch.round_trips = None
        watch.figures = {f"p{percent}_ms": percentile(waits, percent) for percent in (50, 95, 99, 99.9)}
        watch.figures |= {"max_ms": max(waits)}
        bound = percentile(waits, _LATE)
        late = [phases(committed[number], started[number], claims) for number in range(jobs) if waits[number] >= bound]
        for phase in late[0]:
            watch.figures[f"late_{phase}_ms"] = statistics.median(phase_seconds[phase] for phase_seconds in late) * 1000
        return jobs

    return run


def phases(committed: float, started: float, claims: _Claims) -> dict[str, float]:
    """Return the waits of a job, in seconds that add up. Pure.

    `busy`: for the end of a claim that was under way; `wake`: for the claim to begin; `claim`: for its answer; `start`:
    for the handler.
    """
    index = bisect_right(claims, (started, float("inf"))) - 1
    began, ended = claims[index]
    before = claims[index - 1][1] if index > 0 else committed
    began, ended = max(began, committed), min(max(ended, committed), started)
    busy = max(0.0, min(before, began) - committed)
    return {"busy": busy, "wake": began - committed - busy, "claim": ended - began, "start": started - ended}


def _next(pipe: Pipe) -> Any:
    if not pipe.poll(_PATIENCE):
        raise TimeoutError("the worker's process did not answer")
    return pipe.recv()


def _produce(place: Place, jobs: int, rate: int) -> list[float]:
    engine = place.engine(size=1)
    committed = []
    with Session(engine) as session:
        session.connection()
        session.commit()
        began = time.monotonic()
        for number in range(jobs):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            session.add(Job(rows.JOB_TYPE, {"number": number}))
            session.commit()
            committed.append(time.monotonic())
    engine.dispose()
    return committed


def work(orders: Orders, pipe: Pipe) -> None:
    """Run a worker until it has completed its jobs, and send back when each was started: the spawned process's main."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    pipe.send(asyncio.run(_work(orders, pipe)))


async def _work(orders: Orders, pipe: Pipe) -> tuple[dict[int, float], _Claims]:
    queue, events = JobQueue(), EventBus()
    started: dict[int, float] = {}
    claims: _Claims = []
    jobs_left = orders.jobs
    claim = Claimer.claim

    async def noted(claimer: Claimer, connection: AsyncConnection) -> int:
        began = time.monotonic()
        try:
            return await claim(claimer, connection)
        finally:
            claims.append((began, time.monotonic()))

    @queue.handler(rows.JOB_TYPE)
    async def handle(job: Any) -> None:
        # One clock for all processes of a machine.
        started[job["number"]] = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal jobs_left
        if isinstance(event, WorkerStarted):
            # A moment for it to listen and to fall idle.
            asyncio.get_running_loop().call_later(0.5, pipe.send, "started")
        elif isinstance(event, JobCompleted):
            jobs_left -= 1
            if jobs_left == 0:
                worker.stop()

    events.subscribe(on_event)
    engine = create_async_engine(orders.url)
    # Listening, it polls as rarely as by default: what is fast then is due to the notifications.
    poll = WorkerOptions().poll_interval if orders.listen else _POLL
    options = WorkerOptions(concurrency=10, listen=orders.listen, poll_interval=poll)
    worker = Worker(queue, engine, options=options, events=events)
    with mock.patch.object(Claimer, "claim", noted):
        await worker.run()
    await engine.dispose()
    return started, claims
