"""Counting running jobs under limits from a lower bound on, which skips index entries of ended jobs, even unvacuumed ones.

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
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobMixin
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.statements import limits

START: Final = "0"


class Running:
    """Counts what runs of a queue and of a job type, None without a limit, and of each fairness key of `queue_of_keys`."""

    def __init__(
        self, model: type[JobMixin[Any]], *, queue: str | None, type_name: str | None, queue_of_keys: str | None
    ) -> None:
        self._all = compiled(limits.running, model)
        self._by_fairness_key = compiled(limits.running_by_fairness_key, model)
        self._queue, self._type, self._queue_of_keys = queue, type_name, queue_of_keys
        self._since = self._since_of_keys = START

    async def count(self, connection: AsyncConnection) -> tuple[int, int]:
        """Return how many of the queue run and how many of the type, zero for None. Always on the same connection.

        Another one may lead to another server, whose transactions are not comparable.
        """
        given = {"queue": self._queue, "type_name": self._type, "since": self._since}
        ((in_queue, of_type, self._since),) = await self._all.execute(connection, given)
        return in_queue, of_type

    async def count_by_fairness_key(self, connection: AsyncConnection) -> Counter[QueueKey]:
        """Return how many of each fairness key of the queue run. As `count`, always on the same connection."""
        given = {"queue": self._queue_of_keys, "since": self._since_of_keys}
        rows = await self._by_fairness_key.execute(connection, given)
        if rows:
            self._since_of_keys = str(min(int(since) for _, _, since in rows))
        return Counter({QueueKey(self._queue_of_keys or "", fairness_key): n for fairness_key, n, _ in rows})
