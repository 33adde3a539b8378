"""Runs a worker on the event loop of an application, such as a web server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.events import WorkerStarted
from sa_jobqueue.worker import Worker


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker while the block runs: it has started when the block begins, and has stopped when the block has ended.

    At the end it claims no more, and jobs that are running may finish for up to the worker's `shutdown_timeout`; the rest
    are released. Leave the server that much time to stop. If the task is cancelled meanwhile, they are released at once.
    Raises: as `Worker.run`, before the block begins.
    """
    started = asyncio.Event()
    unsubscribe = worker.events.subscribe(lambda _: started.set(), kinds=[WorkerStarted])
    task = asyncio.create_task(worker.run(), name="sa_jobqueue worker")
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            yield worker
    finally:
        unsubscribe()
        await cancelled(waiting)
        if not task.done():  # `stop` before a run would end the next one
            worker.stop()
        await task
