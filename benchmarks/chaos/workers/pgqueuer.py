"""PgQueuer: its own runner and retries in the database, and a listener that fails ends the worker, as its checklist says."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pgqueuer
from pgqueuer import PgQueuer, Queries
from pgqueuer.executors import DatabaseRetryEntrypointExecutor

from benchmarks.chaos import application as app

_RETRY = partial(
    DatabaseRetryEntrypointExecutor,
    max_attempts=app.ATTEMPTS,
    initial_delay=timedelta(milliseconds=200),
    max_delay=timedelta(seconds=1),
)


class PgQueuerSystem(app.System):
    """One connection a worker; heartbeats, polling and restarts as quick as the others'."""

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        if os.environ["CHAOS_DRIVER"] == "asyncpg":
            import asyncpg

            connection: Any = await asyncpg.connect(self.url)
            queuer: Any = PgQueuer.from_asyncpg_connection(connection)
        else:
            import psycopg

            connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
            queuer = PgQueuer.from_psycopg_connection(connection)
        try:
            yield queuer
        finally:
            await connection.close()

    async def setup(self) -> None:
        """Install."""
        async with self._connect() as queuer:
            await Queries(queuer.connection).install()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[app.Put]:
        """Enqueue one by one."""
        async with self._connect() as queuer:
            queries = Queries(queuer.connection)
            yield lambda work: queries.enqueue("handle", json.dumps(work).encode())

    @asynccontextmanager
    async def _queuer(self) -> AsyncIterator[Any]:
        async with self._connect() as queuer:

            async def handle(job: Any) -> None:
                await app.handle(json.loads(job.payload))

            queuer.entrypoint("handle", executor_factory=lambda given: _RETRY(parameters=given))(handle)
            yield queuer

    async def work(self) -> None:
        """Run it as `pgq run` does."""
        await pgqueuer.run(
            self._queuer,
            batch_size=app.CONCURRENCY // 2,
            max_concurrent_tasks=app.CONCURRENCY,
            dequeue_timeout=timedelta(seconds=app.BEAT),
            heartbeat_timeout=timedelta(seconds=app.PATIENCE),
            shutdown_on_listener_failure=True,
            restart_on_failure=True,
            restart_delay=timedelta(seconds=app.BEAT),
        )


if __name__ == "__main__":
    app.main(PgQueuerSystem)
