"""This package, run as the others are: in its own process, by the same protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from protocol import Adapter, Put, Tally, main, payload, uvloop
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Worker, WorkerOptions, enqueue_many
from sa_jobqueue.events import Event, EventBus, JobCompleted
from sa_jobqueue.worker.memory import frozen

TYPE = "no_op"
_queue = JobQueue()


@_queue.handler(TYPE)
async def no_op(document: dict[str, Any]) -> None:
    """Do nothing: it is what jobs are enqueued for."""


class Ours(Adapter):
    """`handler.enqueue` and a commit, or with `by` "objects" a job that is added; a worker as the command line runs it."""

    new_loop = staticmethod(uvloop)

    async def setup(self) -> None:
        """Migrate."""
        from sa_jobqueue.migrations import runner

        with create_engine(self.url).begin() as connection:
            runner.upgrade(connection)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Enqueue and commit by one synchronous session, or with `by` "connection" on a connection in AUTOCOMMIT."""
        off = {"options": "-csa_jobqueue.notify=off"} if self.orders.get("notify") == "off" else {}
        engine = create_engine(self.url, connect_args=off)
        if self.orders.get("by") == "connection":
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

                async def put_on_connection(number: int) -> None:
                    no_op.enqueue(connection, payload(number))

                yield put_on_connection
            return
        with Session(engine) as session:

            async def put(number: int) -> None:
                if self._by_objects:
                    session.add(no_op.job(payload(number)))
                else:
                    no_op.enqueue(session, payload(number))
                session.commit()

            yield put

    async def enqueue_many(self, numbers: range) -> None:
        """Enqueue all in one transaction."""
        with Session(create_engine(self.url)) as session:
            if self._by_objects:
                enqueue_many(session, [no_op.job(payload(number)) for number in numbers])
            else:
                no_op.enqueue_many(session, map(payload, numbers))
            session.commit()

    @property
    def _by_objects(self) -> bool:
        return bool(self.orders.get("by") == "objects")

    async def work(self, tally: Tally, stop_event: asyncio.Event) -> None:
        """Count a job when its completion is written: later than any other system here counts it."""
        queue, events = JobQueue(), EventBus()
        stamps = bool(self.orders.get("stamps"))

        @queue.handler(TYPE)
        async def handle(job: Any) -> None:
            if stamps:
                tally(job["number"])
            else:
                tally.begin()

        def on_event(event: Event) -> None:
            if isinstance(event, JobCompleted):
                tally(0)

        if not stamps:
            events.subscribe(on_event, kinds=[JobCompleted])
        engine = create_async_engine(self.url, pool_size=100)
        options = WorkerOptions(concurrency=100, poll_interval=timedelta(seconds=self.orders.get("poll_seconds", 5)))
        worker = Worker(queue, engine, options=options, events=events)
        with frozen():  # as `sa-jobqueue worker` does
            running = asyncio.ensure_future(worker.run())
            stopping = asyncio.ensure_future(stop_event.wait())
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            await running
        await engine.dispose()


if __name__ == "__main__":
    main(Ours)
