"""Delays before retries. Pure: the random number is an argument."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sa_jobqueue.errors import InvalidOptionError


class RetryPolicy(Protocol):
    """Returns the delay before a retry: a `Backoff`, or any function with this signature."""

    def __call__(self, attempt: int, error: BaseException, /) -> timedelta | None:
        """Return the delay before the next attempt, or None to give up.

        `attempt`: number of the failed attempt, from 1. None makes the job a dead letter with the reason `discarded`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with full jitter: a random delay from zero to `min(cap, base * factor ** (attempt - 1))`.

    `base`: the first bound, above zero; 1 s by default. `factor`: at least 1; 2 by default. `cap`: maximum delay; 1 h by
    default. `jitter`: False always waits for the whole bound. `random`: returns the number from 0 to 1 that the bound is
    multiplied by, for tests.
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
        """Return the maximum delay after this `attempt` (from 1); never above `cap`."""
        try:
            seconds = self.base.total_seconds() * float(self.factor) ** (max(attempt, 1) - 1)
        except OverflowError:
            return self.cap
        return timedelta(seconds=seconds) if seconds < self.cap.total_seconds() else self.cap

    def __call__(self, attempt: int, error: BaseException, /) -> timedelta:
        """Return a delay for this attempt (from 1); the error is ignored."""
        bound = self.bound(attempt)
        return bound * self.random() if self.jitter else bound


def immediately(attempt: int, error: BaseException, /) -> timedelta:
    """Return no delay, whatever the `attempt` and the `error`: for tests, and for errors that are known to be transient."""
    return timedelta(0)
