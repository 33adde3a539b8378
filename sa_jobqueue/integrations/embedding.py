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

    At the end it claims no more, and running jobs may finish for up to the worker's `shutdown_timeout`; the rest are
    released. Leave the server that much time to stop. If the task is cancelled meanwhile, they are released immediately.
    `worker`: the worker to run. Yields it.
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
        await _stop(worker, task)


async def _stop(worker: Worker, task: asyncio.Task[None]) -> None:
    """Stop a worker and wait for its end: a cancellation meanwhile shortens the shutdown, and does not break it off."""
    if not task.done():  # `stop` before a run would end the next one
        worker.stop()
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interrupted = error
            worker.stop(now=True)
    task.result()
    if interrupted is not None:
        raise interrupted
