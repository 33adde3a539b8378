"""Times of schedules. Pure: every instant is an argument, and results are in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sa_jobqueue.errors import InvalidOptionError

NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""What crontab(5) calls by name."""

_ANCHOR: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""From where an expression is tried: leap days and all weekdays of any date lie within 50 years of it."""
_ACCEPTED: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT",
}
"""Values of each field, by its name in errors of cronsim."""
_MAX_WORDS: Final = 200
_LONGEST_FOLD: Final = timedelta(hours=3)
"""No clock is set back by more; what Debian's cron takes for a change of daylight saving."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone.

    `expression`: minute, hour, day of month, month, day of week, as in crontab(5), with names (`MON`, `JAN`), steps, `L`,
    `LW` and `MON#1`; or one of `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. `time_zone`: an IANA name.

    When clocks change, an expression with fixed hours and minutes fires once a day; one whose minutes or hours begin
    with `*` follows elapsed time.
    Raises: InvalidOptionError naming `cron` or `time_zone`, including for an expression that matches no date.
    Source: crontab(5) and cron(8) of Debian, as implemented by the package cronsim.
    """

    expression: str
    time_zone: str = "UTC"
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_zone", ZoneInfo(self.time_zone))
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise InvalidOptionError(
                "time_zone",
                f"{self.time_zone!r} is no time zone known here: give an IANA name such as 'Europe/Prague'; where even "
                "that is unknown, install the system's or Python's package tzdata",
            ) from None
        if not isinstance(self.expression, str) or len(self._spelled.split()) != 5:
            raise InvalidOptionError(
                "cron",
                "must be five fields, minute hour day-of-month month day-of-week, or one of "
                f"{', '.join(NAMED)}; got {self.expression!r}",
            )
        from cronsim import CronSimError

        try:
            next(self._forward(_ANCHOR))
        except CronSimError as error:
            reason = str(error).lower()
            accepted = next((values for name, values in _ACCEPTED.items() if reason.endswith(name)), None)
            hint = f"; it takes {accepted}, *, lists, ranges and steps" if accepted else ""
            raise InvalidOptionError("cron", f"{self.expression!r} cannot be read: {reason}{hint}") from None
        except StopIteration:
            raise InvalidOptionError("cron", f"{self.expression!r} never comes: no date meets it") from None

    @property
    def in_words(self) -> str:
        """Return the expression in words, at most 200 characters: "At 03:00 every day"."""
        from cronsim import CronSim

        words = CronSim(self._spelled, _ANCHOR).explain()
        return words if len(words) <= _MAX_WORDS else f"{words[: _MAX_WORDS - 1]}…"

    @property
    def _spelled(self) -> str:
        return NAMED.get(self.expression.strip().lower(), self.expression)

    def after(self, instant: datetime) -> datetime:
        """Return the first time after `instant`, which must be aware."""
        return next(self._forward(instant))

    def times(self, instant: datetime, count: int) -> list[datetime]:
        """Return the first `count` times after `instant`, in order."""
        return list(islice(self._forward(instant), count))

    def latest(self, *, since: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the last `limit` times from `since` to `until`, both inclusive, oldest first.

        The cost depends on `limit`, not on the length of the period.
        """
        return sorted(islice(self._backward(since, until), limit))

    def _forward(self, instant: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        last = instant
        for local in CronSim(self._spelled, instant.astimezone(self._zone)):
            fires = local.astimezone(UTC)
            # Within the hour that is repeated, a wall clock time ahead may be an instant that has passed; and several
            # times that were skipped are one instant.
            if fires > last:
                yield fires
                last = fires

    def _backward(self, since: datetime, until: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        start = until.replace(microsecond=0) + timedelta(seconds=1)
        if until.astimezone(self._zone).fold:
            # The wall clock has been further than it is now.
            start += _LONGEST_FOLD
        last = until + timedelta(microseconds=1)
        for local in CronSim(self._spelled, start.astimezone(self._zone), reverse=True):
            fires = local.astimezone(UTC)
            if fires < since:
                return
            if fires < last:
                yield fires
                last = fires
