"""Awa: an engine in Rust over append-only tables; Python handlers are called from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from awa import AsyncClient
from protocol import Adapter, Put, main, payload

WORKERS = 128


@dataclass
class NoOp:
    """The input of a job."""

    number: int
    order_id: str


class Awa(Adapter):
    """Its queue storage, which is the default of a fresh database once it is finalised; 128 workers."""

    def __init__(self, url: str, orders: dict[str, Any]) -> None:
        # It wants a host, even where the query names a socket's directory.
        super().__init__(url.replace("@/", "@localhost/"), orders)

    async def setup(self) -> None:
        """Migrate, and make the fresh database use its queue storage."""
        client = AsyncClient(self.url)
        await client.migrate()
        transaction = await client.transaction()
        await transaction.execute("SELECT awa.storage_auto_finalize_if_fresh('awa')")
        await transaction.commit()
        await client.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Insert one by one."""
        client = AsyncClient(self.url)
        yield lambda number: client.insert(NoOp(**payload(number)), queue="bench")
        await client.close()

    async def enqueue_many(self, numbers: range) -> None:
        """COPY into its queue storage."""
        client = AsyncClient(self.url)
        jobs = [NoOp(**payload(number)) for number in numbers]
        await client.enqueue_many_copy(jobs, queue="bench")
        await client.close()

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its runtime."""
        client = AsyncClient(self.url, max_connections=20)

        @client.task(NoOp, queue="bench")
        async def handle(job: Any) -> None:
            tally(job.args.number)

        await client.start([("bench", WORKERS)])
        await stop_event.wait()
        await client.shutdown()
        await client.close()


if __name__ == "__main__":
    main(Awa)
