"""Capacity under limits that hold across all workers, counted under a row lock in the transaction of the claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from itertools import starmap
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled, plain
from sa_jobqueue.models import JobMixin
from sa_jobqueue.policies.fairness import SEPARATOR, label_of, queue_key_of, queue_of, split
from sa_jobqueue.statements import limits
from sa_jobqueue.worker.claim.counting import Running
from sa_jobqueue.worker.claim.rates import Rates

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
    rate_algorithm: str | None
    tokens: float | None
    starts: list[int] | None
    spent_at: datetime | None
    version: int | None
    place: str | None
    now: datetime

    @property
    def key(self) -> Key:
        """Key of the limit."""
        return self.is_type, queue_key_of(self.name, self.fairness_key)


Key: TypeAlias = tuple[bool, str]
"""Key of a limit: whether it is of a job type, and the name of the type, the queue, or the fairness key (`queue_key_of`)."""

BUSY: Final = 0.004
"""Seconds until a claim is retried that found the limit locked by another claim: about as long as a claim takes."""
FULL: Final = 0.02
"""Seconds until a claim is retried that found no capacity; doubled each time, and shortened by a notification."""
MAX_BACKOFF: Final = 0.5
"""Maximum number of seconds between two such retries."""


class Limits:
    """How much capacity the limits of a queue, its fairness keys and a job type leave: read and used in one transaction.

    `queue`, `type_name`: those that have limits, or None. `queue_keys`: of fairness keys with their own limits.
    A crash leaves nothing behind: the transaction ends with its connection.
    """

    def __init__(
        self, model: type[JobMixin[Any]], queue: str | None, type_name: str | None, queue_keys: Collection[str] = ()
    ) -> None:
        self._lock = compiled(limits.lock, model)
        self._queue, self._type = queue, type_name
        self._own = frozenset(queue_keys)
        queue_of_keys = self._queue_of_keys = (
            queue if queue is not None else next((queue_of(name) for name in queue_keys), None)
        )
        self._running = Running(model, queue=queue, type_name=type_name, queue_of_keys=queue_of_keys)
        self.rates = Rates(model, queue, queue_keys)
        self._full = FULL
        self._each: int | None = None
        self._most: dict[Key, int | None] = {}
        self._keys: dict[str, list[Key]] = {}
        self.counted: dict[Key, tuple[int, int]] = {}
        """By key: how many jobs were running at the last count, and how many may run."""
        self._after: dict[Key, tuple[int, int]] = {}
        """The same after the last claim."""
        self.held = 0
        """How many jobs this worker runs under them, by its own count."""
        self.asked_at = float("-inf")
        """When it last counted, by the loop's clock."""
        self.retry_in = 0.0
        """Seconds until a retry may find capacity; zero if there was some."""

    async def capacity(
        self, connection: AsyncConnection, limit: int, queue_keys: Sequence[str] = ()
    ) -> tuple[int, dict[str, int]]:
        """Lock the limits; return how many of `limit` jobs may start now, and how many of each of `queue_keys` with a limit.

        Must be called in a transaction.
        """
        own = [name for name in queue_keys if name in self._own]
        keys = [*([""] if self._queue is not None else []), *(split(name)[1] for name in own)]
        asked = {"queue": self._queue_of_keys, "fairness_keys": keys, "type_name": self._type}
        rows = {row.key: row for row in starmap(LimitRow, await self._lock.execute(connection, asked))}
        shared = [(False, self._queue)] if self._queue is not None else []
        shared += [(True, self._type)] if self._type is not None else []
        self.retry_in = 0.0
        self.counted = {}
        if any(key not in rows for key in shared):
            self.retry_in = BUSY
            return 0, {}
        self.rates.read(rows)
        if await self.rates.correct(connection):
            self.retry_in = BUSY
            return 0, {}
        self._most |= {key: row.global_concurrency for key, row in rows.items()}
        self._keys.clear()
        if any(rows[key].global_concurrency is not None for key in shared):
            in_queue, of_type = await self._running.count(connection)
        else:
            in_queue = of_type = 0
        for key in shared:
            row = rows[key]
            if row.global_concurrency is not None:
                self.counted[key] = (of_type if row.is_type else in_queue), row.global_concurrency
                limit = min(limit, row.global_concurrency - self.counted[key][0])
            if (capacity := self.rates.capacity(key)) is not None:
                limit = min(limit, capacity)
                if capacity == 0:
                    self.retry_in = max(self.rates.wait(key), BUSY)
                    return 0, {}
        if limit <= 0:
            self.retry_in, self._full = self._full, min(2 * self._full, MAX_BACKOFF)
            return 0, {}
        self._full = FULL
        return limit, await self._capacity_of_keys(connection, limit, queue_keys, own, rows)

    async def _capacity_of_keys(
        self,
        connection: AsyncConnection,
        limit: int,
        queue_keys: Sequence[str],
        own: Sequence[str],
        rows: Mapping[Key, LimitRow],
    ) -> dict[str, int]:
        of_queue = rows.get((False, self._queue or ""))
        each = self._each = of_queue.concurrency_per_key if of_queue is not None else None
        self._keys.clear()
        # Locked by another claim: no capacity for this one.
        capacities = {name: limit if (False, name) in rows else 0 for name in own}
        of_own = {name: row.global_concurrency for name in own if (row := rows.get((False, name))) is not None}
        most = {name: number for name, number in of_own.items() if number is not None}
        if each is not None:
            most = dict.fromkeys(queue_keys, each) | most
        if most:
            counts = await self._running.count_by_fairness_key(connection)
            for name, number in most.items():
                capacities[name] = min(capacities.get(name, limit), number - counts[name])
                self.counted[False, name] = counts[name], number
        for name in own:
            if (capacity := self.rates.capacity((False, name))) is not None:
                capacities[name] = min(capacities[name], capacity)
        return capacities

    @property
    def name(self) -> str:
        """Name for logs and notifications: `queue mail`, `type report`, or `queue mail, type report`."""
        named = {"queue": self._queue or next(iter(sorted(self._own)), None), "type": self._type}
        return ", ".join(f"{what} {label_of(name)}" for what, name in named.items() if name is not None)

    @property
    def most(self) -> int | None:
        """How many jobs may run under all of them together, by the last read; None if there is no limit."""
        found = [self._most.get((is_type, name)) for is_type, name in ((False, self._queue), (True, self._type)) if name]
        return min((one for one in found if one is not None), default=None)

    def may_be_reached(self, key: Key, ended: int) -> bool:
        """Return whether a limit may have been reached before `ended` jobs ended: not if half of it was free even then.

        The last count may not include these jobs, because this worker learns of an end later than the database. If other
        workers have used up the limit since, they retry after `MAX_BACKOFF` anyway.
        """
        n, most = self._after.get(key, (1, 1))
        return 2 * (n + ended) >= most

    def covers(self, key: Key) -> bool:
        """Return whether a limit, or the one of a fairness key of its queue, is among these."""
        is_type, name = key
        return name == self._type if is_type else queue_of(name) == self._queue or name in self._own

    def keys_of(self, queue: str) -> list[Key]:
        """Return which of the limits count a job of a queue or fairness key, by the last read."""
        if (known := self._keys.get(queue)) is not None:
            return known
        keys: list[Key] = [(False, self._queue)] if self._queue is not None else []
        keys += [(True, self._type)] if self._type is not None else []
        keys += [(False, queue)] if SEPARATOR in queue else []
        found = self._keys[queue] = [key for key in keys if self._may_run(key) is not None]
        return found

    def started(self, jobs: Sequence[ClaimedJob], ended: Mapping[Key, int]) -> list[Key]:
        """Record what was started after a count; return limits reached until `ended` jobs ended that are not reached now."""
        used = Counter[Key]()
        for queue, n in Counter([job.queue_key for job in jobs]).items():
            for key in self.keys_of(queue):
                used[key] += n
        counts = {key: self.counted[key] for key in ended if key in self.counted}
        self._after = {key: (n + used[key], most) for key, (n, most) in self.counted.items()}
        return [key for key, (n, most) in counts.items() if n + used[key] < most <= n + ended[key]]

    def _may_run(self, key: Key) -> int | None:
        most = self._most.get(key)
        return self._each if most is None and not key[0] and SEPARATOR in key[1] else most


@asynccontextmanager
async def transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Run a block in one transaction, on a connection in autocommit mode.

    Obliges: a block that is cancelled is the last of its connection, whose pool rolls back what it finds.
    """
    await _BEGIN.execute(connection, {})
    try:
        yield
        await _COMMIT.execute(connection, {})
    except Exception:
        with suppress(SQLAlchemyError):
            await _ROLLBACK.execute(connection, {})
        raise
