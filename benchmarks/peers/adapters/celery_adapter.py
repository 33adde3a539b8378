"""Celery over Redis: what one would otherwise pick. Another server, another promise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from celery import Celery
from protocol import Adapter, Put, main, payload


class CelerySystem(Adapter):
    """Acknowledged late, results ignored, no pool beside the worker's own thread: the fastest of its pools for no-ops."""

    def _app(self) -> Celery:
        app = Celery("bench", broker=self.url)
        app.conf.update(
            task_ignore_result=True,
            task_acks_late=True,
            worker_prefetch_multiplier=100,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        return app

    async def setup(self) -> None:
        """Nothing to create."""

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Send one by one over one connection."""
        app = self._app()
        with app.producer_or_acquire() as producer:

            async def put(number: int) -> None:
                app.send_task("no_op", kwargs=payload(number), producer=producer)

            yield put

    async def enqueue_many(self, numbers: range) -> None:
        """Send one by one: it has no other way."""
        async with self.producer() as enqueue:
            for number in numbers:
                await enqueue(number)

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its worker in a thread of this process."""
        app = self._app()

        @app.task(name="no_op")
        def handle(number: int, order_id: str) -> None:
            tally(number)

        worker = app.Worker(pool="solo", concurrency=1, loglevel="ERROR", without_gossip=True, without_mingle=True)
        threading.Thread(target=worker.start, daemon=True).start()
        await stop_event.wait()
        worker.stop()


if __name__ == "__main__":
    main(CelerySystem)
