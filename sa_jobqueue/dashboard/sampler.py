"""One health report per queue and process, and one of the shares, each shared by all viewers.

It is measured when a page asks for it and the last is too old, so without an open page there is no statement. How old
it may be depends on its cost: measuring takes at most a twentieth of one connection's time, whatever the number of viewers.
Who asks for a new one gets it, one at a time and at most every two seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sa_jobqueue.errors import JobQueueError

T = TypeVar("T")

AT_LEAST: Final = timedelta(seconds=2)
"""Minimum age at which a report is replaced."""
AT_MOST: Final = timedelta(seconds=60)
"""Maximum age of a report while pages ask for one."""
FRESH: Final = timedelta(seconds=5)
"""Maximum age of queues, workers, waits and locks, which are measured again between two whole reports."""
SHARE: Final = 20
"""A report is kept for this many times the time that it took."""
PATIENCE: Final = 0.25
"""Maximum number of seconds that a page waits for a report under way."""


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """The last report, its age, and why there is no newer one."""

    value: T | None
    """None if none could be measured yet."""
    age: timedelta
    took: timedelta
    """Duration of the measurement."""
    error: str | None
    """Why the last attempt to measure failed, as one sentence."""


class Sampler(Generic[T]):
    """Measures a report when it is asked for one and the last is too old. Thread-safe.

    It measures in a separate thread, one report at a time; callers get the last report, or none, after at most `PATIENCE`.
    """

    def __init__(
        self, read: Callable[[], T], *, at_most: timedelta = AT_MOST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._at_most = read, at_most
        self._clock = clock
        self._lock = threading.Lock()
        self._measured = threading.Event()
        self._measured.set()
        self._value: T | None = None
        self._error: str | None = None
        self._measured_at = self._tried_at = float("-inf")
        self._took = 0.0
        self._is_expired = False

    @property
    def last(self) -> T | None:
        """The last report, however old; None if there is none."""
        return self._value

    def expire(self) -> None:
        """Have the next call measure, if the last measurement is `AT_LEAST` old."""
        self._is_expired = True

    def sample(self) -> Sample[T]:
        """Return the last report; a new one if that is due and measured soon enough."""
        with self._lock:
            if self._is_due() and self._measured.is_set():
                self._measured.clear()
                threading.Thread(target=self._measure, name="sa_jobqueue dashboard", daemon=True).start()
        self._measured.wait(PATIENCE)
        age = timedelta(seconds=max(self._clock() - self._measured_at, 0.0)) if self._value is not None else timedelta(0)
        return Sample(self._value, age, timedelta(seconds=self._took), self._error)

    def _is_due(self) -> bool:
        kept_for = 0.0 if self._is_expired else self._took * SHARE
        seconds = min(max(kept_for, AT_LEAST.total_seconds()), self._at_most.total_seconds())
        return self._clock() - self._tried_at >= seconds

    def _measure(self) -> None:
        began = self._clock()
        self._is_expired = False
        failure: str | None = "the server's log has the details"
        try:
            value = self._read()
            self._value, self._measured_at, failure = value, self._clock(), None
        except (DBAPIError, PoolTimeoutError, JobQueueError) as error:
            failure = sentence(error)
        finally:
            self._error = failure
            self._tried_at = self._clock()
            self._took = self._tried_at - began
            self._measured.set()


def sentence(error: Exception) -> str:
    """Return a database's or the library's error as one line, without its statement and parameters."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)
