"""Checks of numbers, durations and instants that callers give, each an error that names the option and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from reprlib import Repr
from typing import Final, TypeAlias

from sa_jobqueue.errors.base import InvalidOptionError, JobQueueError
from sa_jobqueue.types import LATEST, LONGEST

Refuse: TypeAlias = Callable[[str, str], JobQueueError]
"""Makes the error of an option, such as the class `InvalidOptionError`, from its name and the reason."""

_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120


def shown(value: object) -> str:
    """Return a refused value for a message: its `repr`, shortened where it is long."""
    return _SHORT.repr(value)


def check_number(option: str, value: object, least: int, most: int, *, refuse: Refuse = InvalidOptionError) -> None:
    """Check a whole number within its bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise refuse(option, f"must be a whole number from {least:,} to {most:,}, got {shown(value)}")


def check_duration(
    option: str,
    value: object,
    *,
    or_zero: bool = False,
    most: timedelta = LONGEST,
    refuse: Refuse = InvalidOptionError,
) -> None:
    """Check a duration above zero, or from zero with `or_zero`, and at most `most`."""
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= most or not (value or or_zero):
        least = "from zero to" if or_zero else "above zero and at most"
        longest = f"{most.days:,} days" if most.days else str(most)
        raise refuse(option, f"must be a timedelta {least} {longest}, got {shown(value)}")


def check_instant(option: str, value: object, *, refuse: Refuse = InvalidOptionError) -> None:
    """Check an instant at which a job may be due."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise refuse(option, f"must be an aware datetime, such as datetime.now(UTC), got {shown(value)}")
    if value >= LATEST:
        raise refuse(option, f"must be before the year {LATEST.year}, got {shown(value)}")
