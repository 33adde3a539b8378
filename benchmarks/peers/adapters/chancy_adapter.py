"""Chancy, with its asyncio executor and eager polling: claims in batches, writes results in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from chancy import Chancy, Queue, Worker, job
from protocol import Adapter, Put, main, payload

CONCURRENCY = 100
_tally: Callable[[int], None]


@job(queue="default")
async def no_op(*, number: int, order_id: str) -> None:
    """Do nothing: found by its import path, so it stands in the module."""
    _tally(number)


class ChancySystem(Adapter):
    """No plugins, no log of each job."""

    def _app(self) -> Chancy:
        quiet = logging.getLogger("chancy")
        quiet.setLevel(logging.ERROR)
        return Chancy(self.url, plugins=[], no_default_plugins=True, log=quiet)

    async def setup(self) -> None:
        """Migrate, and declare the queue."""
        async with self._app() as chancy:
            await chancy.migrate()
            queue = Queue(
                name="default",
                executor=Chancy.Executor.Async,
                concurrency=CONCURRENCY,
                eager_polling=True,
                polling_interval=1,
            )
            await chancy.declare(queue, upsert=True)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Push one by one."""
        async with self._app() as chancy:
            yield lambda number: chancy.push(no_op.job.with_kwargs(**payload(number)))

    async def enqueue_many(self, numbers: range) -> None:
        """Push a thousand in a transaction, its default."""
        async with self._app() as chancy:
            async for _ in chancy.push_many([no_op.job.with_kwargs(**payload(number)) for number in numbers]):
                pass

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its worker."""
        global _tally  # noqa: PLW0603 - the handler is found by name
        _tally = tally
        async with self._app() as chancy, Worker(chancy, register_signal_handlers=False):
            await stop_event.wait()


if __name__ == "__main__":
    import chancy_adapter  # the jobs name this module, not __main__

    main(chancy_adapter.ChancySystem)
