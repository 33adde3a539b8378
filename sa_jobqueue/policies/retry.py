"""When a failed job is tried again. Pure: the random number is an argument."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sa_jobqueue.errors import InvalidOptionError


class RetryPolicy(Protocol):
    """Decides from the failed attempt's number and its error; a `Backoff`, or any function of that shape."""

    def __call__(self, attempt: int, error: BaseException, /) -> timedelta | None:
        """Return how long to wait before the next attempt, or None to give up now.

        `attempt`: the attempt that failed, from 1. None makes the job a dead letter with the reason `discarded`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with full jitter: a wait drawn evenly from zero to the attempt's bound.

    The bound is `min(cap, base * factor ** (attempt - 1))`.

    `base`: the first bound, above zero; default 1 s. `factor`: at least 1; default 2. `cap`: no wait is longer;
    default 1 h. `jitter`: False waits the whole bound, which lets a crowd that failed together come back together.
    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("full jitter").
    """

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: bool = True
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.base <= timedelta(0):
            raise InvalidOptionError("base", f"must be above zero, got {self.base}")
        if not self.factor >= 1:  # so, because NaN is neither
            raise InvalidOptionError("factor", f"must be at least 1, got {self.factor}")
        if self.cap < self.base:
            raise InvalidOptionError("cap", f"must not be below base ({self.base}), got {self.cap}")

    def bound(self, attempt: int) -> timedelta:
        """Return the longest wait after this attempt (from 1); never above `cap`, whatever the attempt."""
        try:
            seconds = self.base.total_seconds() * float(self.factor) ** (max(attempt, 1) - 1)
        except OverflowError:
            return self.cap
        return timedelta(seconds=seconds) if seconds < self.cap.total_seconds() else self.cap

    def __call__(self, attempt: int, error: BaseException, /) -> timedelta:
        """Return a wait for this attempt (from 1), whatever the error."""
        bound = self.bound(attempt)
        return bound * self.random() if self.jitter else bound


def immediately(attempt: int, error: BaseException, /) -> timedelta:
    """Try again at once: for tests, and for errors known to pass."""
    return timedelta(0)
