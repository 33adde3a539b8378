"""Signals that a handler raises to end its attempt."""

from __future__ import annotations

from datetime import datetime, timedelta

from sa_jobqueue.display.durations import shown_duration
from sa_jobqueue.errors.base import MODULE, InvalidOptionError, Portable
from sa_jobqueue.errors.bounds import check_duration, check_instant


class AttemptSignal(Portable):  # a signal, not an error
    """Base class of the signals that a handler raises to end its attempt. Its session's writes are rolled back."""

    __module__ = MODULE


def _check_when(delay: timedelta | None, at: datetime | None) -> None:
    if (delay is None) == (at is None):
        raise InvalidOptionError("delay", "give exactly one of delay and at")
    if at is not None:
        check_instant("at", at)
    else:
        check_duration("delay", delay, or_zero=True)


def _words(delay: timedelta | None, at: datetime | None) -> str:
    return f"until {at.isoformat()}" if at is not None else f"for {shown_duration(delay or timedelta(0))}"


class Snooze(AttemptSignal):
    """Raise to run the job again after `delay`, or at `at`, without counting the attempt.

    `at`: an aware datetime; a time in the past, by the database's clock, means immediately. Give exactly one of the two.
    `delay`: from zero to 36,500 days.
    """

    __module__ = MODULE

    def __init__(self, delay: timedelta | None = None, *, at: datetime | None = None) -> None:
        _check_when(delay, at)
        self.delay = delay
        self.at = at
        super().__init__(f"snoozed {_words(delay, at)}")


class Retry(AttemptSignal):
    """Raise to retry the job after `delay`, or at `at`, instead of by its retry policy; the attempt is counted.

    `delay`, `at`: as for `Snooze`. `reason` is recorded as the attempt's error; by default, the exception being handled
    is.
    """

    __module__ = MODULE

    def __init__(self, delay: timedelta | None = None, *, at: datetime | None = None, reason: str = "") -> None:
        _check_when(delay, at)
        self.delay = delay
        self.at = at
        self.reason = reason
        super().__init__(reason or f"postponed {_words(delay, at)}")


class Discard(AttemptSignal):
    """Raise to make the job a dead letter immediately, even if it has attempts left.

    `reason`: recorded as the message of the attempt's error.
    """

    __module__ = MODULE

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Cancel(AttemptSignal):
    """Raise to end the job as cancelled, when there is nothing left to do and nothing failed.

    `reason`: recorded as the message of the attempt's error.
    """

    __module__ = MODULE

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)
