"""Local token buckets: this worker's share of the rates that are divided among all workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.worker.background.settings import Controls
from sa_jobqueue.worker.claim.rates import weight_of

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN: Final = 0.05


class Bucket:
    """One worker's share of one rate. It starts empty, so that a restart causes no burst; without a rate no job may start.

    The cost of a job is known once it is claimed, so a claim may overdraw the bucket.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate: Rate | None = None
        self._weight = 1.0
        self.was_empty = False
        """Whether the last call of `capacity` returned zero."""

    def update(self, rate: Rate | None) -> None:
        """Set this worker's share of the rate; None if it is not known yet. Tokens are kept, up to the new burst."""
        held = 0.0 if self._rate is None else self._as_of(self._rate).left
        self._rate = None if rate is None else replace(rate, tokens=min(held, rate.most), at=self._now())

    def capacity(self) -> int:
        """Return how many jobs of the recent average cost may start."""
        left = 0.0 if self._rate is None else self._as_of(self._rate).left
        capacity = max(int(left / self._weight), int(left >= 1))
        self.was_empty = not capacity
        return capacity

    def wait(self) -> float:
        """Return in how many seconds a job may start; without a rate, when to check for one again."""
        return _UNKNOWN if self._rate is None else self._as_of(self._rate).wait().total_seconds()

    def spend(self, jobs: Sequence[ClaimedJob]) -> None:
        """Take the tokens for jobs that were started."""
        if self._rate is not None and jobs:
            weight = sum(map(weight_of, jobs))
            self._weight = (self._weight + weight / len(jobs)) / 2
            self._rate = self._as_of(self._rate).spent(weight)

    def _now(self) -> datetime:
        return _START + timedelta(seconds=self._clock())

    def _as_of(self, rate: Rate) -> Rate:
        return rate.as_of(self._now())


class Buckets:
    """The token buckets of one worker, kept when its lanes are planned again."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[bool, str], Bucket] = {}

    def update(self, controls: Controls) -> None:
        """Apply changed rates, and changed numbers of workers that share them."""
        divided = {(False, name): one for name, one in controls.queues.items() if one.is_divided}
        divided |= {(True, name): one for name, one in controls.types.items() if one.is_divided}
        self._buckets = {key: self._buckets.get(key) or Bucket() for key in divided}
        for key, one in divided.items():
            self._buckets[key].update(one.part_of_rate)

    def of(self, queue: str | None, type_name: str | None) -> list[Bucket]:
        """Return the buckets of a queue and a job type."""
        keys = (False, queue), (True, type_name)
        return [bucket for is_type, name in keys if name is not None and (bucket := self._buckets.get((is_type, name)))]
