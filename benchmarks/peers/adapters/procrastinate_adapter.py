"""Procrastinate: one function of its schema claims a job, another finishes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector
from protocol import Adapter, Put, main, payload

CONCURRENCY = 100


class Procrastinate(Adapter):
    """`PsycopgConnector`, its asynchronous one; LISTEN on."""

    def _app(self) -> App:
        return App(connector=PsycopgConnector(conninfo=self.url, min_size=1, max_size=10))

    async def setup(self) -> None:
        """Apply its schema."""
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Defer one by one."""
        async with self._app().open_async() as app:
            deferrer = app.configure_task("no_op", queue="default", allow_unknown=True)
            yield lambda number: deferrer.defer_async(**payload(number))

    async def enqueue_many(self, numbers: range) -> None:
        """Defer a thousand in a call."""
        async with self._app().open_async() as app:
            deferrer = app.configure_task("no_op", queue="default", allow_unknown=True)
            for first in range(numbers.start, numbers.stop, 1000):
                chunk = range(first, min(first + 1000, numbers.stop))
                await deferrer.batch_defer_async(*(payload(number) for number in chunk))

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its worker with a hundred at a time; finished jobs are kept, as by default."""
        app = self._app()

        @app.task(name="no_op", queue="default")
        async def handle(number: int, order_id: str) -> None:
            tally(number)

        async with app.open_async():
            running = asyncio.create_task(app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
            await stop_event.wait()
            running.cancel()
            await asyncio.wait({running})


if __name__ == "__main__":
    main(Procrastinate)
