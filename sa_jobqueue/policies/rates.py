"""What a rate lets start, and what is remembered of what was started under it. Pure: instants are arguments.

**Token bucket.** It holds `burst` tokens at most and is refilled by `limit` in each `period`; a job takes as many as it
weighs. So in any stretch of time at most the burst and what the rate gives is started.

**Sliding window.** Within any `period`, wherever it begins, at most `limit` is started. What was started is remembered as
instants and sums, one a claim; where more than `SLOTS` may be within the window, instants are rounded up to a 64th of it.
So a start may count for that much longer than it must, and never shorter.

A job that weighs more than there can ever be starts when nothing else counts: it takes a bucket into debt, and a window is
closed until it has left it.

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
    """How a rate counts."""

    TOKEN_BUCKET = "token_bucket"  # noqa: S105
    """At most the burst at once, and on average the rate."""
    SLIDING_WINDOW = "sliding_window"
    """At most the limit within any period."""
    LOCAL_TOKEN_BUCKET = "local_token_bucket"  # noqa: S105 - no password
    """A token bucket of which each worker has its part, in memory: approximate, and no claim waits for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate and what has been started under it, as of `at`.

    `limit` in `period`; `burst` of a bucket, `limit` unless given. `tokens`: what a bucket holds, None when it is full.
    `starts`: of a window, instants in microseconds since 1970 and how much was started then, in turn; oldest first.
    `at`: when that was so; None before the first start.
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
        """Return the rate that a row tells, with its newest state, as of its `now`; None where it has none."""
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
        """How much may be started at once when nothing has been for long."""
        return self.limit if self._is_window or self.burst is None else self.burst

    @property
    def per_second(self) -> float:
        """How much may be started a second, in the long run."""
        return self.limit / self.period.total_seconds()

    @property
    def left(self) -> float:
        """How much may be started at `at`: of a window whole numbers; below zero in debt."""
        if self._is_window:
            return self.limit - sum(self.starts[1::2])
        return self.most if self.tokens is None else self.tokens

    def as_of(self, now: datetime) -> Rate:
        """Return what holds at a later instant: refilled, or with less within the window.

        After the clock was set back, what was started counts as if it had been just now; otherwise nothing would start for
        as long as the clock was ahead.
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
        """Return whether something was started after `now`, a moment ago: by a claim that began later and was faster."""
        return self.at is not None and timedelta(0) < self.at - now <= STEPPED_BACK

    def is_ahead(self, spent_at: datetime | None) -> bool:
        """Return whether what was started, last at `spent_at`, was written by a clock that was ahead of `at`."""
        return spent_at is not None and self.at is not None and spent_at - self.at > STEPPED_BACK

    def divided(self, count: int) -> Rate:
        """Return the part that each of so many workers has: at most one at once where the burst is smaller than they are."""
        return replace(self, period=self.period * count, burst=max(self.most // count, 1))

    def fitting(self, weights: Sequence[int]) -> int:
        """Return how many jobs of these weights, from the first, may be started together at `at`."""
        left, count = self.left, 0
        for weight in weights:
            if weight > left and not (count == 0 and left >= self.most):
                break
            left -= weight
            count += 1
        return count

    def wait(self, weight: int = 1) -> timedelta:
        """Return how long after `at` a job of this weight may start, if nothing else does."""
        missing = min(weight, self.most) - self.left
        if missing <= 0:
            return timedelta(0)
        if not self._is_window:
            return timedelta(seconds=missing / self.per_second)
        # Until so much has left the window that there is room.
        leaving = accumulate(self.starts[1::2])
        last = next(instant for instant, gone in zip(self.starts[::2], leaving, strict=True) if gone >= missing)
        return timedelta(microseconds=last) + self.period - ((self.at or _EPOCH) - _EPOCH)

    def spent(self, weight: int) -> Rate:
        """Return what holds after so much was started at `at`."""
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
