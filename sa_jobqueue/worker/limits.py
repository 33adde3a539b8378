"""Claims under limits that hold across all workers: one at a time for what they limit, in a transaction that counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import limits
from sa_jobqueue.worker.rates import Rates

BUSY: Final = 0.004
"""Seconds until a claim that met another one under the same limit is tried again: that one takes about as long."""
FULL: Final = 0.02
"""Seconds until one that found no room is tried again, then twice as many each time: nobody tells when there is some."""
SELDOM: Final = 0.5
"""Seconds between two such tries at most."""


class Limits:
    """How much room the limits of a queue, of its parts and of a type leave, as of now; asked and used in one transaction.

    `queue`, `type_name`: those that have limits, or None. `parts`: the parts that have some of their own. What a crash
    leaves: nothing; the transaction ends with its connection, at the latest when the server has heard none for `patience`.
    """

    def __init__(
        self, model: type[JobMixin[Any]], queue: str | None, type_name: str | None, parts: Collection[str] = ()
    ) -> None:
        self._lock = limits.lock(model)
        self._running = limits.running(model)
        self._running_by_part = limits.running_by_part(model)
        self._queue, self._type = queue, type_name
        self._own = frozenset(parts)
        self.rates = Rates(model, queue, parts)
        self._full = FULL
        self.again_in = 0.0
        """Seconds until it is worth asking again, after there was no room for any."""

    async def room(self, connection: AsyncConnection, limit: int, parts: Sequence[str] = ()) -> tuple[int, dict[str, int]]:
        """Lock the limits and return how many of `limit` jobs they let start now, and how many of those of `parts`.

        A part that is not among those has room for all. Within a transaction.
        """
        own = [name for name in parts if name in self._own]
        queues = [*([self._queue] if self._queue is not None else []), *own]
        asked = {"queues": queues, "type_name": self._type}
        rows = (await connection.execute(self._lock, asked)).all()
        told = {(row.is_type, row.name): row for row in rows}
        whole = [(False, self._queue)] if self._queue is not None else []
        whole += [(True, self._type)] if self._type is not None else []
        self.again_in = 0.0
        if any(key not in told for key in whole):
            self.again_in = BUSY
            return 0, {}
        self.rates.read(told)
        if any(told[key].max_running is not None for key in whole):
            names = {"queue": self._queue, "type_name": self._type}
            in_queue, of_type = (await connection.execute(self._running, names)).one()
        else:
            in_queue = of_type = 0
        for key in whole:
            row = told[key]
            if row.max_running is not None:
                limit = min(limit, row.max_running - (of_type if row.is_type else in_queue))
            if (room := self.rates.room(key)) is not None:
                limit = min(limit, room)
                if room == 0:
                    self.again_in = max(self.rates.wait(key), BUSY)
                    return 0, {}
        if limit <= 0:
            self.again_in, self._full = self._full, min(2 * self._full, SELDOM)
            return 0, {}
        self._full = FULL
        return limit, await self._room_of_parts(connection, limit, parts, own, told)

    async def _room_of_parts(
        self,
        connection: AsyncConnection,
        limit: int,
        parts: Sequence[str],
        own: Sequence[str],
        told: Mapping[tuple[bool, str], Any],
    ) -> dict[str, int]:
        of_queue = told.get((False, self._queue or ""))
        each = of_queue.key_max_running if of_queue is not None else None
        # Held by another claim: no room in this one.
        rooms = {name: limit if (False, name) in told else 0 for name in own}
        most = {name: row.max_running for name in own if (row := told.get((False, name))) is not None}
        if each is not None:
            most |= {name: each for name in parts if most.get(name) is None}
        most = {name: number for name, number in most.items() if number is not None}
        if most:
            found = await connection.execute(self._running_by_part, {"queues": list(most)})
            counts = {row.queue: row.n for row in found}
            for name, number in most.items():
                rooms[name] = min(rooms.get(name, limit), number - counts.get(name, 0))
        for name in own:
            if (room := self.rates.room((False, name))) is not None:
                rooms[name] = min(rooms[name], room)
        return rooms

    def holds(self) -> bool:
        """Return whether the first job is known to be heavier than what the rates let start yet."""
        if left := self.rates.holds():
            self.again_in = left
        return left > 0


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
