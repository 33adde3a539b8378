"""Rates: how many jobs may start, and the state that records starts. Pure: instants are arguments.

**Token bucket.** It holds at most `burst` tokens and is refilled with `limit` tokens per `period`. A job takes as many
tokens as its rate cost. So in any interval at most the burst and the refill are started: in any `period`, at most `burst`
and `limit` together.

A job that costs more than the burst starts when the bucket is full, and overdraws it: then its cost counts in place of the
burst.

Source: J. Turner, "New Directions in Communications (Or Which Way to the Information Age?)", 1986, for the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

STEPPED_BACK: Final = timedelta(minutes=1)
"""A claim may begin milliseconds before the previous one under its limit; if it is more, the clock was set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate and its state at `at`.

    `limit` per `period`; `burst`: size of the bucket, `limit` by default. `tokens`: content of the bucket; None if it is
    full. `at`: time of the state; None before the first start.
    """

    limit: int
    period: timedelta
    burst: int | None = None
    tokens: float | None = None
    at: datetime | None = None

    @classmethod
    def of(cls, row: Any) -> Rate | None:
        """Return the rate and state of a row of `limits.lock`, at its `now`; None without a rate."""
        if row.rate_limit is None:
            return None
        rate = cls(limit=row.rate_limit, period=row.rate_period, burst=row.rate_burst, tokens=row.tokens, at=row.spent_at)
        return rate if rate.is_after(row.now) else rate.as_of(row.now)

    @property
    def most(self) -> int:
        """Maximum cost that may start together after a long pause."""
        return self.limit if self.burst is None else self.burst

    @property
    def per_second(self) -> float:
        """Cost that may start per second on average."""
        return self.limit / self.period.total_seconds()

    @property
    def left(self) -> float:
        """Cost that may start at `at`; negative for an overdrawn bucket."""
        return self.most if self.tokens is None else self.tokens

    def as_of(self, now: datetime) -> Rate:
        """Return the state at a later instant: the bucket is refilled.

        If the clock was set back, it is refilled from `now` on. Otherwise nothing would start until the clock reaches the
        time of the state.
        """
        since = now - self.at if self.at is not None else timedelta(0)
        filled = self.left + max(since.total_seconds(), 0.0) * self.per_second
        return replace(self, tokens=None if filled >= self.most else filled, at=now)

    def is_after(self, now: datetime) -> bool:
        """Return whether there was a start shortly after `now`, by a claim that began later but was faster."""
        return self.at is not None and timedelta(0) < self.at - now <= STEPPED_BACK

    def is_ahead(self, spent_at: datetime | None) -> bool:
        """Return whether the last start, at `spent_at`, was recorded by a clock that was ahead of `at`."""
        return spent_at is not None and self.at is not None and spent_at - self.at > STEPPED_BACK

    def fitting(self, weights: Sequence[int]) -> int:
        """Return how many of the first jobs with these costs may start together at `at`."""
        tokens_left, count = self.left, 0
        for weight in weights:
            if weight > tokens_left and not (count == 0 and tokens_left >= self.most):
                break
            tokens_left -= weight
            count += 1
        return count

    def wait(self, weight: int = 1) -> timedelta:
        """Return how long after `at` a job of this cost may start, if nothing else starts."""
        missing = min(weight, self.most) - self.left
        if missing <= 0:
            return timedelta(0)
        return timedelta(seconds=missing / self.per_second)

    def spent(self, weight: int) -> Rate:
        """Return the state after a start of this cost at `at`."""
        return replace(self, tokens=self.left - weight)
