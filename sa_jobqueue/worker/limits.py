"""Claims under limits that hold across all workers: one at a time a queue or a type, in a transaction that counts first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import limits

BUSY: Final = 0.004
"""Seconds until a claim that met another one under the same limit is tried again: that one takes about as long."""
FULL: Final = 0.02
"""Seconds until one that found no room is tried again, then twice as many each time: nobody tells when there is some."""
SELDOM: Final = 0.5
"""Seconds between two such tries at most."""


class Limits:
    """How much room the limits of a queue and of a type leave, as of now; asked and used in one transaction.

    Both are optional. What a crash leaves: nothing; the transaction ends with its connection, at the latest when the server
    has heard nothing for `patience`.
    """

    def __init__(self, model: type[JobMixin[Any]], queue: str | None, type_name: str | None) -> None:
        self._lock = limits.lock(model)
        self._running = limits.running(model)
        self._spend = limits.spend(model, of_type=False), limits.spend(model, of_type=True)
        self._names = {"queue": queue, "type_name": type_name}
        self._full = FULL
        self._has_rate = False
        self.again_in = 0.0
        """Seconds until it is worth asking again, after there was no room."""

    async def room(self, connection: AsyncConnection, limit: int) -> int:
        """Lock the limits and return how many of `limit` jobs they let start now. Within a transaction."""
        told: Sequence[Any] = (await connection.execute(self._lock, self._names)).all()
        if len(told) < sum(name is not None for name in self._names.values()):
            self.again_in = BUSY
            return 0
        self._has_rate = any(tokens is not None for _, tokens, _ in told)
        counts: Sequence[int] = (await connection.execute(self._running, self._names)).one()
        counts = [count for count, name in zip(counts, self._names.values(), strict=True) if name is not None]
        for (max_running, tokens, per_second), count in zip(told, counts, strict=True):
            if max_running is not None:
                limit = min(limit, max_running - count)
            if tokens is not None:
                limit = min(limit, int(tokens))
                if limit <= 0 and tokens < 1:
                    self.again_in = max((1 - tokens) / per_second, BUSY)
                    return 0
        if limit <= 0:
            self.again_in, self._full = self._full, min(2 * self._full, SELDOM)
            return 0
        self.again_in, self._full = 0.0, FULL
        return limit

    async def spend(self, connection: AsyncConnection, jobs: Sequence[ClaimedJob]) -> None:
        """Take what was started from the rates. Within the transaction of `room`."""
        if jobs:
            for statement, name in zip(self._spend, self._names.values(), strict=True):
                if name is not None and self._has_rate:
                    await connection.execute(statement, {"limited": name, "count": len(jobs)})


@asynccontextmanager
async def transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Make one transaction of a block, on a connection on which each statement is its own.

    Obliges: a block that is cancelled is the last of its connection, whose pool rolls back what it finds.
    """
    await connection.exec_driver_sql("BEGIN")
    try:
        yield
        await connection.exec_driver_sql("COMMIT")
    except Exception:
        with suppress(SQLAlchemyError):
            await connection.exec_driver_sql("ROLLBACK")
        raise
