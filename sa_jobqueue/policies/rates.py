"""Rates: how many jobs may start, and the state that records starts. Pure: instants are arguments.

**Token bucket.** It holds at most `burst` tokens and is refilled with `limit` tokens per `period`. A job takes as many
tokens as its rate cost. So in any interval at most the burst and the refill are started.

**Sliding window.** Within any `period`, at most `limit` is started. The state has an instant and a sum for each claim. If
there can be more than `SLOTS` in a window, instants are rounded up to a 64th of the period: a start may count that much
longer than necessary, never shorter.

A job that costs more than the maximum starts when nothing else counts: it overdraws the bucket, or fills the window until it
leaves it.

Source: J. Turner, "New Directions in Communications (Or Which Way to the Information Age?)", 1986, for the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

SLOTS: Final = 64
"""How many sums a window is remembered by, or two more."""
STEPPED_BACK: Final = timedelta(minutes=1)
"""A claim may begin milliseconds before the previous one under its limit; if it is more, the clock was set back."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class RateAlgorithm(StrEnum):
    """Algorithm of a rate limit."""

    TOKEN_BUCKET = "token_bucket"  # noqa: S105
    """At most the burst together, and on average the rate."""
    SLIDING_WINDOW = "sliding_window"
    """At most the limit within any period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate and its state at `at`.

    `limit` per `period`; `burst`: size of the bucket, `limit` by default. `tokens`: content of the bucket; None if it is
    full. `starts`: for a window, alternating instants in microseconds since 1970 and costs, oldest first. `at`: time of the
    state; None before the first start.
    """

    limit: int
    period: timedelta
    burst: int | None = None
    algorithm: RateAlgorithm = RateAlgorithm.TOKEN_BUCKET
    tokens: float | None = None
    starts: Sequence[int] = ()
    at: datetime | None = None

    @classmethod
    def of(cls, row: Any) -> Rate | None:
        """Return the rate and state of a row of `limits.lock`, at its `now`; None without a rate."""
        if row.rate_limit is None:
            return None
        rate = cls(
            limit=row.rate_limit,
            period=row.rate_period,
            burst=row.rate_burst,
            algorithm=RateAlgorithm(row.rate_algorithm or RateAlgorithm.TOKEN_BUCKET),
            tokens=row.tokens,
            starts=tuple(row.starts or ()),
            at=row.spent_at,
        )
        return rate if rate.is_after(row.now) else rate.as_of(row.now)

    @property
    def most(self) -> int:
        """Maximum cost that may start together after a long pause."""
        return self.limit if self._is_window or self.burst is None else self.burst

    @property
    def per_second(self) -> float:
        """Cost that may start per second on average."""
        return self.limit / self.period.total_seconds()

    @property
    def left(self) -> float:
        """Cost that may start at `at`: a whole number for a window, negative for an overdrawn bucket."""
        if self._is_window:
            return self.limit - sum(self.starts[1::2])
        return self.most if self.tokens is None else self.tokens

    def as_of(self, now: datetime) -> Rate:
        """Return the state at a later instant: the bucket is refilled, and old starts have left the window.

        If the clock was set back, recorded starts count as if they had just happened. Otherwise nothing would start until
        the clock reaches their time.
        """
        since = now - self.at if self.at is not None else timedelta(0)
        if self._is_window:
            starts = self.starts
            if since < -STEPPED_BACK:
                starts = (_microseconds(now), sum(starts[1::2])) if starts else ()
            since_then = _microseconds(now - self.period)
            first = next((place for place in range(0, len(starts), 2) if starts[place] > since_then), len(starts))
            return replace(self, starts=tuple(starts[first:]), at=now)
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
        if not self._is_window:
            return timedelta(seconds=missing / self.per_second)
        # Until so much has left the window that there is room.
        leaving = accumulate(self.starts[1::2])
        last = next(instant for instant, freed in zip(self.starts[::2], leaving, strict=True) if freed >= missing)
        return timedelta(microseconds=last) + self.period - ((self.at or _EPOCH) - _EPOCH)

    def spent(self, weight: int) -> Rate:
        """Return the state after a start of this cost at `at`."""
        if not self._is_window:
            return replace(self, tokens=self.left - weight)
        # A window of few needs no rounding: it has room for one sum each.
        width = self.period // SLOTS // _MICROSECOND if self.limit > SLOTS else 1
        instant = -(-_microseconds(self.at or _EPOCH) // max(width, 1)) * max(width, 1)
        if self.starts and self.starts[-2] >= instant:
            return replace(self, starts=(*self.starts[:-1], self.starts[-1] + weight))
        return replace(self, starts=(*self.starts, instant, weight))

    @property
    def _is_window(self) -> bool:
        return self.algorithm is RateAlgorithm.SLIDING_WINDOW


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND
