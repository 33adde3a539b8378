"""Dramatiq over Redis, with its defaults: eight threads, acknowledged after the handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.worker import Worker
from protocol import Adapter, Put, main, payload


class DramatiqSystem(Adapter):
    """Its own middleware, as its Redis broker comes with it."""

    def _broker(self) -> RedisBroker:
        broker = RedisBroker(url=self.url.replace("redis+socket://", "unix://"))
        dramatiq.set_broker(broker)
        return broker

    async def setup(self) -> None:
        """Nothing to create."""

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Send one by one."""
        self._broker()

        @dramatiq.actor(actor_name="no_op")
        def handle(number: int, order_id: str) -> None: ...

        async def put(number: int) -> None:
            handle.send(**payload(number))

        yield put

    async def enqueue_many(self, numbers: range) -> None:
        """Send one by one: it has no other way."""
        async with self.producer() as enqueue:
            for number in numbers:
                await enqueue(number)

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its worker, whose threads count one at a time."""
        broker, lock = self._broker(), threading.Lock()

        @dramatiq.actor(actor_name="no_op")
        def handle(number: int, order_id: str) -> None:
            with lock:
                tally(number)

        worker = Worker(broker)
        worker.start()
        await stop_event.wait()
        worker.stop()


if __name__ == "__main__":
    main(DramatiqSystem)
