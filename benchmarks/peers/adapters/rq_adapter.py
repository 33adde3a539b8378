"""RQ over Redis: jobs are ordinary functions, found by their name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from protocol import Adapter, Put, main, payload
from redis import Redis
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.timeouts import TimerDeathPenalty

CHUNK = 1000
noted: list[Callable[[int], None]] = []


def no_op(number: int, order_id: str) -> None:
    """Do nothing but count."""
    noted[0](number)


class _Worker(SimpleWorker):
    """Its worker without a fork for each job: the faster of its own. It is not the main thread, which signals need."""

    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None: ...


class Rq(Adapter):
    """One queue, with its defaults: results are kept for 500 seconds."""

    def _queue(self) -> Queue:
        return Queue(connection=Redis.from_url(self.url.replace("redis+socket://", "unix://")))

    async def setup(self) -> None:
        """Nothing to create."""

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Enqueue one by one over one connection."""
        queue = self._queue()

        async def put(number: int) -> None:
            queue.enqueue("rq_adapter.no_op", kwargs=payload(number))

        yield put

    async def enqueue_many(self, numbers: range) -> None:
        """Enqueue a thousand in a call."""
        queue = self._queue()
        for first in range(numbers.start, numbers.stop, CHUNK):
            chunk = range(first, min(first + CHUNK, numbers.stop))
            queue.enqueue_many([Queue.prepare_data("rq_adapter.no_op", kwargs=payload(number)) for number in chunk])

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its worker in a thread of this process."""
        import rq_adapter  # not this script's `__main__`: the module that its jobs are found in

        rq_adapter.noted.append(tally)
        queue = self._queue()
        worker: Any = _Worker([queue], connection=queue.connection)
        threading.Thread(target=lambda: worker.work(logging_level="ERROR"), daemon=True).start()
        await stop_event.wait()
        with suppress(StopRequested):  # an idle one raises it here, for its own thread
            worker.request_stop(None, None)


if __name__ == "__main__":
    main(Rq)
