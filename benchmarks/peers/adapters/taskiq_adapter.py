"""taskiq over a Redis stream: the one of its Redis brokers that acknowledges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from protocol import Adapter, Put, main, payload, uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

CONCURRENCY = 100


class Taskiq(Adapter):
    """Results ignored, a hundred at a time, as its command line has by default."""

    new_loop = staticmethod(uvloop)

    def _broker(self) -> RedisStreamBroker:
        return RedisStreamBroker(self.url.replace("redis+socket://", "unix://"))

    async def setup(self) -> None:
        """Nothing to create."""

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Send one by one."""
        broker = self._broker()

        @broker.task(task_name="no_op")
        async def handle(number: int, order_id: str) -> None: ...

        await broker.startup()
        yield lambda number: handle.kiq(**payload(number))
        await broker.shutdown()

    async def enqueue_many(self, numbers: range) -> None:
        """Send one by one: it has no other way."""
        async with self.producer() as enqueue:
            for number in numbers:
                await enqueue(number)

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its receiver in this loop."""
        broker = self._broker()

        @broker.task(task_name="no_op")
        async def handle(number: int, order_id: str) -> None:
            tally(number)

        running = asyncio.create_task(run_receiver_task(broker, max_async_tasks=CONCURRENCY, run_startup=True))
        await stop_event.wait()
        running.cancel()
        await asyncio.wait({running}, timeout=10)


if __name__ == "__main__":
    main(Taskiq)
