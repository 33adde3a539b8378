"""How many jobs the rates of a queue, its fairness keys and a job type allow, and whether a claim exceeded them, by cost."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobClass
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.statements import limits

_KNOWN: Final = 0.5
"""Seconds for which a job that cost too much is assumed to be the first of its queue: a cheaper one may come before it."""


Key: TypeAlias = tuple[bool, QueueKey]
"""Key of a limit: whether it is of a job type; and the type, the queue, or the fairness key."""


class RolledBackError(Exception):
    """Rolls a claim back: its jobs exceed a rate, or another claim used it after this one read it. Or it was a trial."""


class Rates:
    """The rates of one group of lanes, as of its last claim. Locks nothing: `Limits` does.

    How many jobs fit is estimated from recent costs, since the costs of jobs are unknown until they are claimed. A claim
    that exceeds the rate is rolled back before any job runs, and fewer are claimed: the first that fit, in their order.
    """

    def __init__(self, model: JobClass, queue: str | None, queue_keys: Collection[QueueKey]) -> None:
        self._spend = compiled(limits.spend, model)
        self._queue = queue
        self._queue_keys = frozenset(queue_keys)
        self._rates: dict[Key, Rate] = {}
        self._versions: dict[Key, int | None] = {}
        self._late: set[Key] = set()
        self._ahead: set[Key] = set()
        self._weight = 1.0
        self._fits: dict[Key, int] = {}
        self._first: dict[Key, tuple[int, float]] = {}

    def read(self, rows: Mapping[Key, Any]) -> None:
        """Update the rates from the rows of `limits.lock`."""
        rates = {key: Rate.of(row) for key, row in rows.items()}
        self._rates = {key: rate for key, rate in rates.items() if rate is not None}
        self._versions = {key: row.version for key, row in rows.items()}
        # Used by a claim that began after ours but was faster: by our `now()` that is in the future.
        self._late = {key for key, rate in self._rates.items() if rate.is_after(rows[key].now)}

        self._ahead = {key for key, rate in self._rates.items() if rate.is_ahead(rows[key].spent_at)}

    async def correct(self, connection: AsyncConnection) -> bool:
        """Correct rates that were last used in the future, because the clock was set back; return whether there were any.

        Otherwise they would not be refilled until that time. Must be called in the transaction that read the rates; end it
        afterwards and read them again.
        """
        ahead = {key: self._rates[key] for key in self._ahead}
        if ahead:
            await self._spend.execute(connection, self._given(ahead))
        return bool(ahead)

    def capacity(self, key: Key) -> int | None:
        """Return how many jobs of the recent average cost a rate allows; None without a rate."""
        if (rate := self._rates.get(key)) is None:
            return None
        if key in self._late or not rate.fitting([self._first_weight(key)]):
            return 0
        guess = max(int(rate.left / self._weight), 1)
        return min(guess, self._fits.get(key, guess))

    def wait(self, key: Key) -> float:
        """Return in how many seconds a rate without capacity may have some."""
        return 0.0 if key in self._late else self._rates[key].wait(self._first_weight(key)).total_seconds()

    def _weigh(self, jobs: Sequence[ClaimedJob]) -> None:
        """Check the costs of claimed jobs: when they are too much, the next `capacity` is smaller.

        It is zero while the first job costs too much.
        """
        if not self._rates:
            return
        in_turn = sorted(jobs, key=lambda job: (-job.priority, job.scheduled_at, job.id))
        heavy = False
        for key, rate in self._rates.items():
            weights = [weight_of(job) for job in self._under(key, in_turn)]
            fitting = rate.fitting(weights)
            if fitting == len(weights):
                continue
            heavy = True
            # Which job is the first is only certain for a fairness key, and for a claim of one job.
            self._fits[key] = max(fitting, 1)
            if fitting == 0 and (self._is_fairness_key(key) or len(jobs) == 1):
                self._first[key] = weights[0], time.monotonic() + _KNOWN
        if heavy:
            raise RolledBackError
        self._fits = {}
        self._first = {key: first for key, first in self._first.items() if not self._under(key, jobs)}
        if jobs:
            self._weight = (self._weight + sum(map(weight_of, jobs)) / len(jobs)) / 2

    async def spend(self, connection: AsyncConnection, jobs: Sequence[ClaimedJob]) -> None:
        """Check the costs of claimed jobs before any is started, and write them. In the transaction that read the rates.

        Raises: RolledBackError.
        """
        self._weigh(jobs)
        used = [(key, rate, under) for key, rate in self._rates.items() if (under := self._under(key, jobs))]
        spent = {key: rate.spent(sum(map(weight_of, under))) for key, rate, under in used}
        if spent and len(await self._spend.execute(connection, self._given(spent))) < len(spent):
            raise RolledBackError

    def _given(self, spent: Mapping[Key, Rate]) -> dict[str, Any]:
        return {
            "is_types": [is_type for is_type, _ in spent],
            "names": [name.queue for _, name in spent],
            "fairness_keys": [name.fairness_key for _, name in spent],
            "versions": [self._versions[key] for key in spent],
            "tokens": [rate.tokens for rate in spent.values()],
        }

    def _first_weight(self, key: Key) -> int:
        weight, until = self._first.get(key, (1, 0.0))
        return weight if time.monotonic() < until else 1

    def _under(self, key: Key, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        return [job for job in jobs if job.queue_key == key[1]] if self._is_fairness_key(key) else jobs

    def _is_fairness_key(self, key: Key) -> bool:
        return not key[0] and key[1] in self._queue_keys


def weight_of(job: ClaimedJob) -> int:
    """Return how much a job counts against rates; at least one, even if a smaller number was written by hand."""
    return max(job.rate_cost or 1, 1)
