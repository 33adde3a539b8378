"""Jobs that wait for events: from the sender's commit to the handler, and the cost of a claim beside a million of them."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks import claiming, rows
from benchmarks.harness import Case, Comparison, Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import AttemptContext, JobQueue, Worker, WorkerOptions
from sa_jobqueue.operations import send_event

_ALONE: Final = "claims, no job waits"
_FEWEST: Final = 1_000
_RATE: Final = 20
_WAKES: Final = 200


def scenario() -> Scenario:
    """Return the cases."""
    once: dict[str, Any] = {"rated": False, "most_rounds": 1}
    return Scenario(
        name="events",
        says=f"{_RATE} events/s, from the return of the commit to the line after wait_for; as many children/s, "
        "from the return of the child's handler to the line after ctx.run of its parent; claims beside jobs that "
        "each wait for an event",
        cases=(
            Case(name="event to handler", run=_wake, most=_WAKES, rated=False),
            Case(name="child's return to parent", run=_resume, most=_WAKES, rated=False),
            Case(name=_ALONE, run=_claim, prepare=lambda place, jobs: rows.fill(place, _FEWEST), rated=False),
            Case(
                name="claims, all wait",
                run=_claim,
                prepare=_fill_waiting,
                against=Comparison(case=_ALONE, figure="p99_ms"),
                **once,
            ),
        ),
        jobs=1_000_000,
    )


def _claim(place: Place, watch: Stopwatch, jobs: int) -> int:
    return claiming.claim_one_at_a_time(place, watch)


def _fill_waiting(place: Place, jobs: int) -> None:
    """Put due jobs and waiting ones into the queue; these have had an attempt, and are due when their wait times out."""
    rows.fill(place, _FEWEST)
    with place.begin() as connection:
        waits = """
            WITH waiting AS (
              INSERT INTO job (id, type_name, chain_id, chain_type_name, input, scheduled_at)
              SELECT id, :type_name, id, :type_name, '{}', now() + interval '7 days'
              FROM (SELECT job_uuid7() AS id FROM generate_series(1, :jobs)) AS made RETURNING id)
            INSERT INTO job_step (job_id, name, kind, attempt, started_at, event, deadline)
            SELECT id, 'approval', 'wait', 1, now(), 'approved:' || id, now() + interval '7 days' FROM waiting"""
        connection.execute(text(waits), {"jobs": max(jobs, _FEWEST), "type_name": rows.JOB_TYPE})
    place.run("VACUUM ANALYZE job")
    place.run("VACUUM ANALYZE job_step")


def _wake(place: Place, watch: Stopwatch, jobs: int) -> int:
    sent: dict[int, float] = {}
    woken: dict[int, float] = {}
    waiting, ready, all_woken = threading.Semaphore(0), threading.Event(), asyncio.Event()
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def handle(number: int, ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            waiting.release()
        await ctx.wait_for("approval", event=f"approved:{number}", timeout=timedelta(hours=1))
        woken[number] = time.monotonic()
        if len(woken) == jobs:
            all_woken.set()

    def send() -> None:
        ready.wait()
        engine = place.engine(size=1)
        began = time.monotonic()
        for number in range(jobs):
            time.sleep(max(0.0, began + number / _RATE - time.monotonic()))
            with Session(engine) as session:
                send_event(session, f"approved:{number}")
                session.commit()
            sent[number] = time.monotonic()
        engine.dispose()

    async def work() -> None:
        engine = place.async_engine(size=20)
        worker = Worker(queue, engine, options=WorkerOptions(concurrency=20))
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(lambda: [waiting.acquire() for _ in range(jobs)])
        await asyncio.sleep(1)  # the last waits are recorded, and the worker falls idle
        ready.set()
        with watch:
            await all_woken.wait()
        worker.stop()
        await running
        await engine.dispose()

    place.clear()
    with Session(place.engine()) as session, session.begin():
        queue[rows.JOB_TYPE].enqueue_many(session, list(range(jobs)))
    sender = threading.Thread(target=send)
    sender.start()
    asyncio.run(work())
    sender.join()
    _report_waits(watch, sent, woken)
    return jobs


def _resume(place: Place, watch: Stopwatch, jobs: int) -> int:
    returned: dict[int, float] = {}
    resumed: dict[int, float] = {}
    queue, all_resumed = JobQueue(), asyncio.Event()

    @queue.handler("child")
    async def child(number: int) -> None:
        returned[number] = time.monotonic()

    @queue.handler(rows.JOB_TYPE)
    async def handle(number: int, ctx: AttemptContext) -> None:
        await ctx.run(child, number, delay=timedelta(seconds=3 + number / _RATE))
        resumed[number] = time.monotonic()
        if len(resumed) == jobs:
            all_resumed.set()

    async def work() -> None:
        engine = place.async_engine(size=20)
        worker = Worker(queue, engine, options=WorkerOptions(concurrency=20))
        with watch:
            running = asyncio.create_task(worker.run())
            await all_resumed.wait()
        worker.stop()
        await running
        await engine.dispose()

    place.clear()
    with Session(place.engine()) as session, session.begin():
        queue[rows.JOB_TYPE].enqueue_many(session, list(range(jobs)))
    asyncio.run(work())
    _report_waits(watch, returned, resumed)
    return jobs


def _report_waits(watch: Stopwatch, begins: dict[int, float], ends: dict[int, float]) -> None:
    """Set the figures: milliseconds between the times of each number."""
    waits = [(ends[number] - begin) * 1000 for number, begin in begins.items()]
    watch.round_trips = None
    watch.figures = {f"p{percent}_ms": percentile(waits, percent) for percent in (50, 95, 99)} | {"max_ms": max(waits)}
