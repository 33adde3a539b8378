"""Chancy: its asyncio executor, and the plugins it loads by default, of which Recovery rescues jobs of dead workers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Job, Queue, Worker
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

from benchmarks.chaos import application as app


async def handle(*, number: int, kind: str, seconds: float) -> None:
    """Run it: found by its import path."""
    await app.handle({"number": number, "kind": kind, "seconds": seconds})


_JOB: Any = Job(func="benchmarks.chaos.workers.chancy.handle", max_attempts=app.ATTEMPTS)


class ChancySystem(app.System):
    """Heartbeats, election, recovery, backoff and shutdown as quick as the others'; each is an option it documents."""

    def _app(self) -> Any:
        quiet = logging.getLogger("chancy")
        quiet.setLevel(logging.WARNING)
        plugins = [Leadership(poll_interval=1, timeout=int(app.PATIENCE)), Recovery(poll_interval=1)]
        return Chancy(self.url, plugins=plugins, log=quiet)

    async def setup(self) -> None:
        """Migrate, and declare the queue."""
        async with self._app() as chancy:
            await chancy.migrate()
            queue = Queue(
                name="default",
                executor=Chancy.Executor.Async,
                concurrency=app.CONCURRENCY,
                eager_polling=True,
                polling_interval=1,
            )
            await chancy.declare(queue, upsert=True)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[app.Put]:
        """Push one by one."""
        async with self._app() as chancy:
            yield lambda work: chancy.push(_JOB.with_kwargs(**work))

    async def work(self) -> None:
        """Run its worker."""
        async with self._app() as chancy:
            worker = Worker(
                chancy,
                heartbeat_poll_interval=1,
                heartbeat_timeout=int(app.PATIENCE),
                shutdown_timeout=int(app.DRAIN),
                backoff_initial=app.BEAT,
                backoff_max=2.0,
            )
            async with worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    app.main(ChancySystem)
