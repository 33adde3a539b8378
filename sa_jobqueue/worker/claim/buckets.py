"""Local token buckets: this worker's parts of the rates that are divided among all workers."""

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
    """One worker's share of one rate. It starts empty, so that a restart causes no burst; without a rate nothing starts.

    The costs of jobs are known once they have started: a claim that took too much takes the bucket into debt.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate: Rate | None = None
        self._weight = 1.0
        self.was_empty = False
        """Whether the last call of `room` returned none."""

    def update(self, rate: Rate | None) -> None:
        """Take the rate of this worker's part, None for none yet. What the bucket holds stays, up to its new burst."""
        held = 0.0 if self._rate is None else self._as_of(self._rate).left
        self._rate = None if rate is None else replace(rate, tokens=min(held, rate.most), at=self._now())

    def room(self) -> int:
        """Return how many jobs may start, by what they weighed lately."""
        left = 0.0 if self._rate is None else self._as_of(self._rate).left
        room = max(int(left / self._weight), int(left >= 1))
        self.was_empty = not room
        return room

    def wait(self) -> float:
        """Return in how many seconds a job may start; without a rate, when to check for one again."""
        return _UNKNOWN if self._rate is None else self._as_of(self._rate).wait().total_seconds()

    def spend(self, jobs: Sequence[ClaimedJob]) -> None:
        """Take in what has started."""
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
        """Take what is said of rates, and among how many workers they are divided."""
        divided = {(False, name): one for name, one in controls.queues.items() if one.is_divided}
        divided |= {(True, name): one for name, one in controls.types.items() if one.is_divided}
        self._buckets = {key: self._buckets.get(key) or Bucket() for key in divided}
        for key, one in divided.items():
            self._buckets[key].update(one.part_of_rate)

    def of(self, queue: str | None, type_name: str | None) -> list[Bucket]:
        """Return what a group of lanes takes from."""
        keys = (False, queue), (True, type_name)
        return [bucket for is_type, name in keys if name is not None and (bucket := self._buckets.get((is_type, name)))]
