"""Capacity under limits that hold across all workers, counted under a row lock in the transaction of the claim.

Counting running jobs under limits from a lower bound on, which skips index entries of ended jobs, even unvacuumed ones.

A count with snapshot S returns a lower bound for the next one: the lowest `changed_xid` of the rows that it counted, or the
oldest transaction in progress in S where that is lower. No running row of the same queue, or type, that a later count sees
lies below it. Either S saw that row as it is: then it ran, was counted, and the bound is not above it. Or a transaction that
S did not see has written it since, for whatever makes a job run, or moves it to another queue, stamps it with its own id;
and no such transaction is older than the oldest in progress. Neither a lock nor a clock is part of this, so it does not
matter which worker claims, or how.

Only jobs are left to walk past that have ended since the oldest of them began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from itertools import starmap
from typing import Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.db.compiled import compiled, plain
from sa_jobqueue.models import JobClass
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.statements import limits
from sa_jobqueue.worker.claim.rates import Key, Rates

# Counts under a lock must see what was committed before the lock, whatever the default isolation level is.
_BEGIN = plain("BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT, _ROLLBACK = plain("COMMIT"), plain("ROLLBACK")


class LimitRow(NamedTuple):
    """A row of `limits.lock`."""

    is_type: bool
    name: str
    fairness_key: str
    global_concurrency: int | None
    concurrency_per_key: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    rate_burst: int | None
    tokens: float | None
    spent_at: datetime | None
    version: int | None
    now: datetime

    @property
    def key(self) -> Key:
        """Key of the limit."""
        return self.is_type, QueueKey(self.name, self.fairness_key)


BUSY: Final = 0.004
"""Seconds until a claim is retried that found the limit locked by another claim: about as long as a claim takes."""
FULL: Final = 0.25
"""Seconds until this worker counts again where it found no capacity, unless one of its jobs ends earlier."""
_START: Final = "0"


class Limits:
    """How much capacity the limits of a queue, its fairness keys and a job type leave: read and used in one transaction.

    `queue`, `type_name`: those that have limits, or None. `queue_keys`: of fairness keys with their own limits.
    A crash leaves nothing behind: the transaction ends with its connection.
    """

    def __init__(
        self, model: JobClass, queue: str | None, type_name: str | None, queue_keys: Collection[QueueKey] = ()
    ) -> None:
        self._lock = compiled(limits.lock, model)
        self._queue, self._type = queue, type_name
        self._limited_keys = frozenset(queue_keys)
        self._queue_of_keys = queue if queue is not None else next((name.queue for name in queue_keys), None)
        self._running = compiled(limits.running, model)
        self._running_by_key = compiled(limits.running_by_fairness_key, model)
        self._since = self._since_of_keys = _START
        self.rates = Rates(model, queue, queue_keys)
        self.free_slots: int | None = None
        """How many more jobs the concurrency limits of all its jobs together allowed at the last count; None without one."""
        self.retry_in = 0.0
        """Seconds until a retry may find capacity; zero if there was some."""

    async def capacity(
        self, connection: AsyncConnection, limit: int, queue_keys: Sequence[QueueKey] = ()
    ) -> tuple[int, dict[QueueKey, int]]:
        """Lock the limits; return how many of `limit` jobs may start now, and how many of each of `queue_keys` with a limit.

        Must be called in a transaction.
        """
        limited_keys = [name for name in queue_keys if name in self._limited_keys]
        keys = [*([""] if self._queue is not None else []), *(name.fairness_key for name in limited_keys)]
        parameters = {"queue": self._queue_of_keys, "fairness_keys": keys, "type_name": self._type}
        rows = {row.key: row for row in starmap(LimitRow, await self._lock.execute(connection, parameters))}
        shared = [(False, QueueKey(self._queue))] if self._queue is not None else []
        shared += [(True, QueueKey(self._type))] if self._type is not None else []
        self.retry_in, self.free_slots = 0.0, None
        if any(key not in rows for key in shared):
            self.retry_in = BUSY
            return 0, {}
        self.rates.read(rows)
        if await self.rates.correct(connection):
            self.retry_in = BUSY
            return 0, {}
        if any(rows[key].global_concurrency is not None for key in shared):
            in_queue, of_type = await self._count(connection)
        else:
            in_queue = of_type = 0
        for key in shared:
            row = rows[key]
            if row.global_concurrency is not None:
                free_slots = row.global_concurrency - (of_type if row.is_type else in_queue)
                self.free_slots = free_slots if self.free_slots is None else min(free_slots, self.free_slots)
                limit = min(limit, free_slots)
            if (capacity := self.rates.capacity(key)) is not None:
                limit = min(limit, capacity)
                if capacity == 0:
                    self.retry_in = max(self.rates.wait(key), BUSY)
                    return 0, {}
        if limit <= 0:
            self.retry_in = FULL
            return 0, {}
        return limit, await self._capacity_of_keys(connection, limit, queue_keys, limited_keys, rows)

    async def _capacity_of_keys(
        self,
        connection: AsyncConnection,
        limit: int,
        queue_keys: Sequence[QueueKey],
        limited_keys: Sequence[QueueKey],
        rows: Mapping[Key, LimitRow],
    ) -> dict[QueueKey, int]:
        of_queue = rows.get((False, QueueKey(self._queue or "")))
        each = of_queue.concurrency_per_key if of_queue is not None else None
        # Locked by another claim: no capacity for this one.
        capacities = {name: limit if (False, name) in rows else 0 for name in limited_keys}
        concurrency_by_key = {
            name: row.global_concurrency for name in limited_keys if (row := rows.get((False, name))) is not None
        }
        most = {name: number for name, number in concurrency_by_key.items() if number is not None}
        if each is not None:
            most = dict.fromkeys(queue_keys, each) | most
        if most:
            counts = await self._count_by_key(connection)
            for name, number in most.items():
                capacities[name] = min(capacities.get(name, limit), number - counts[name])
        for name in limited_keys:
            if (capacity := self.rates.capacity((False, name))) is not None:
                capacities[name] = min(capacities[name], capacity)
        return capacities

    async def _count(self, connection: AsyncConnection) -> tuple[int, int]:
        """Return how many of the queue run and how many of the type, zero for None. Always on the same connection.

        Another one may lead to another server, whose transactions are not comparable.
        """
        parameters = {"queue": self._queue, "type_name": self._type, "since": self._since}
        ((in_queue, of_type, self._since),) = await self._running.execute(connection, parameters)
        return in_queue, of_type

    async def _count_by_key(self, connection: AsyncConnection) -> Counter[QueueKey]:
        """Return how many of each fairness key of the queue run. As `_count`, always on the same connection."""
        parameters = {"queue": self._queue_of_keys, "since": self._since_of_keys}
        rows = await self._running_by_key.execute(connection, parameters)
        if rows:
            self._since_of_keys = str(min(int(since) for _, _, since in rows))
        return Counter({QueueKey(self._queue_of_keys or "", fairness_key): n for fairness_key, n, _ in rows})

    @property
    def name(self) -> str:
        """Name for logs and notifications: `queue mail`, `type report`, or `queue mail, type report`."""
        queue = self._queue or next((key.label for key in sorted(self._limited_keys)), None)
        name_by_kind = {"queue": queue, "type": self._type}
        return ", ".join(f"{kind} {name}" for kind, name in name_by_kind.items() if name is not None)


@asynccontextmanager
async def transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Run a block in one transaction, on a connection in autocommit mode.

    Obliges: a block that is cancelled is the last of its connection, whose pool rolls its transaction back.
    """
    await _BEGIN.execute(connection, {})
    try:
        yield
        await _COMMIT.execute(connection, {})
    except Exception:
        with suppress(SQLAlchemyError):
            await _ROLLBACK.execute(connection, {})
        raise
