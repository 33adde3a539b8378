"""PgQueuer, over asyncpg or psycopg: claims in batches, and moves finished jobs to a log table in batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pgqueuer import PgQueuer, Queries
from protocol import Adapter, Put, main, payload, uvloop

BATCH = 100


class PgQueuerSystem(Adapter):
    """One connection, as its own examples have; the batch is raised from 10 to what ours claims."""

    new_loop = staticmethod(uvloop)

    async def _connect(self) -> tuple[Any, PgQueuer]:
        if self.orders["driver"] == "asyncpg":
            import asyncpg

            connection = await asyncpg.connect(self.url)
            return connection, PgQueuer.from_asyncpg_connection(connection)
        import psycopg

        connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        return connection, PgQueuer.from_psycopg_connection(connection)

    async def setup(self) -> None:
        """Install."""
        connection, queuer = await self._connect()
        await Queries(queuer.connection).install()
        await connection.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Enqueue one by one."""
        connection, queuer = await self._connect()
        queries = Queries(queuer.connection)
        yield lambda number: queries.enqueue("no_op", json.dumps(payload(number)).encode())
        await connection.close()

    async def enqueue_many(self, numbers: range) -> None:
        """Enqueue all in one statement."""
        connection, queuer = await self._connect()
        inputs = [json.dumps(payload(number)).encode() for number in numbers]
        await Queries(queuer.connection).enqueue(["no_op"] * len(inputs), inputs, [0] * len(inputs))
        await connection.close()

    async def work(self, tally: Callable[[int], None], stop_event: asyncio.Event) -> None:
        """Run its queue manager."""
        connection, queuer = await self._connect()

        @queuer.entrypoint("no_op")
        async def handle(job: Any) -> None:
            tally(json.loads(job.payload)["number"])

        running = asyncio.create_task(queuer.run(batch_size=BATCH))
        await stop_event.wait()
        queuer.shutdown.set()
        await asyncio.wait({running}, timeout=10)
        await connection.close()


if __name__ == "__main__":
    main(PgQueuerSystem)
