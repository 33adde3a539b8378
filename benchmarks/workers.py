"""A worker that drains the queue under a stopwatch: from its registration to the last end it wrote."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import JobQueue, Worker, WorkerOptions
from sa_jobqueue.events import Event, EventBus, JobCompleted, WorkerStarted
from sa_jobqueue.worker.memory import frozen


def drain(
    place: Place,
    watch: Stopwatch,
    jobs: int,
    queue: JobQueue,
    *,
    concurrency: int,
    **options: Any,
) -> int:
    """Run a worker in this process until so many jobs are completed and it is idle; return how many it completed.

    `options`: more of `WorkerOptions`.
    """
    with frozen():  # as `sa-jobqueue worker` does: what the harness has imported is no cost of a job
        return asyncio.run(_drain(place, watch, jobs, queue, WorkerOptions(concurrency=concurrency, **options)))


async def _drain(place: Place, watch: Stopwatch, jobs: int, queue: JobQueue, options: WorkerOptions) -> int:
    jobs_left = jobs

    def on_event(event: Event) -> None:
        nonlocal jobs_left
        if isinstance(event, JobCompleted):
            jobs_left -= 1
            if jobs_left == 0:
                watch.stop()
        elif isinstance(event, WorkerStarted):
            watch.start()

    events = EventBus()
    events.subscribe(on_event, kinds=[JobCompleted, WorkerStarted])  # no event is made that is not counted
    engine = place.async_engine(size=options.concurrency)
    worker = Worker(queue, engine, options=options, events=events)
    await worker.run_until_idle()
    await engine.dispose()
    return jobs - jobs_left
