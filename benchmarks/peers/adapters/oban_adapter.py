"""Oban for Python, the free version: claims in batches, inserts and acknowledges each job separately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from oban import Oban, worker
from oban.schema import install
from protocol import Adapter, Put, main, payload, uvloop

LIMIT = 100
_tally: Callable[[int], None]


@worker(queue="default")
class NoOp:
    """Do nothing."""

    async def process(self, job: Any) -> None:
        """Report that it started."""
        _tally(job.args["number"])


class ObanSystem(Adapter):
    """Its pool as it makes it, of ten connections."""

    new_loop = staticmethod(uvloop)

    async def setup(self) -> None:
        """Install."""
        pool = await Oban.create_pool(self.url)
        await install(pool)
        await pool.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Enqueue one by one."""
        pool = await Oban.create_pool(self.url)
        async with Oban(pool=pool) as oban:
            yield lambda number: oban.enqueue(NoOp.new(payload(number)))
        await pool.close()

    async def enqueue_many(self, numbers: range) -> None:
        """Enqueue all in one transaction."""
        pool = await Oban.create_pool(self.url)
        async with Oban(pool=pool) as oban:
            await oban.enqueue_many([NoOp.new(payload(number)) for number in numbers])
        await pool.close()

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run one queue."""
        global _tally  # noqa: PLW0603 - its workers are classes it makes itself
        _tally = tally
        pool = await Oban.create_pool(self.url)
        async with Oban(pool=pool, queues={"default": LIMIT}):
            await stop_event.wait()
        await pool.close()


if __name__ == "__main__":
    main(ObanSystem)
