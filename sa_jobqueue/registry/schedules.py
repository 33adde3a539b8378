"""Schedules as declared, and the times at which they fire. Pure: `now` is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.policies.cron import Cron
from sa_jobqueue.types import Json

MAX_CATCH_UP: Final = 10_000
_MAX_GRACE: Final = timedelta(days=3650)


class MisfirePolicy(StrEnum):
    """Misfire policy: what to do about times at which no worker fired a schedule."""

    SKIP = "skip"
    """Nothing: a time later than `grace` is not fired."""
    ONE = "one"
    """Only the latest of them is fired."""
    ALL = "all"
    """All of them are fired, up to the latest `catch_up`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleColumns:
    """The columns that define a schedule: `Schedule` has their meanings."""

    name: str
    cron: str
    time_zone: str = "UTC"
    type_name: str
    # job options: schedules, fairness_key: str = ""
    queue: str | None = None
    fairness_key: str = ""
    priority: int | None = None
    max_attempts: int | None = None
    timeout: timedelta | None = None
    rate_cost: int | None = None
    # end of job options
    input: Json = None
    input_version: int | None = None
    fire_time_field: str | None = None
    misfire_policy: MisfirePolicy | str = MisfirePolicy.ONE
    catch_up: int = 100
    grace: timedelta = timedelta(minutes=1)
    overlap: bool = True


SETTINGS: Final = tuple(column.name for column in fields(ScheduleColumns) if column.name != "name")
"""The columns that define a schedule beside its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(ScheduleColumns):
    """The definition of a schedule, as in its row. `JobQueue.schedule` creates one for a handler and checks its payload.

    `name`: 1 to 100 characters, unique in the job tables. `cron`, `time_zone`: as in `Cron`. `type_name`, `queue`,
    `fairness_key`, `priority`, `max_attempts`, `timeout`, `rate_cost`, `input`, `input_version`: those of its jobs.
    None means the values recorded for their type.
    `fire_time_field`: field of `input`, which must be an object, that receives the scheduled time in ISO 8601.
    `misfire_policy`, `catch_up`, `grace`, `overlap`: as in `JobQueue.schedule`.
    """

    times: Cron = field(init=False, repr=False, compare=False)
    """When it fires."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 100 or not self.name.isprintable():
            raise InvalidOptionError("name", f"must be 1 to 100 printable characters, got {self.name!r}")
        object.__setattr__(self, "times", Cron(self.cron, self.time_zone))
        if self.misfire_policy not in set(MisfirePolicy):
            raise InvalidOptionError(
                "misfire_policy", f"must be one of {', '.join(MisfirePolicy)}, got {self.misfire_policy!r}"
            )
        object.__setattr__(self, "misfire_policy", MisfirePolicy(self.misfire_policy))
        check_number("catch_up", self.catch_up, 1, MAX_CATCH_UP)
        check_duration("grace", self.grace, or_zero=True, most=_MAX_GRACE)
        if not isinstance(self.overlap, bool):
            raise InvalidOptionError("overlap", f"must be True or False, got {self.overlap!r}")
        if self.fire_time_field is not None and not isinstance(self.input, Mapping | None):
            raise InvalidOptionError("fire_time_field", "needs an input that is an object, or none")

    def input_at(self, fire_time: datetime) -> Json:
        """Return the input of the job that is fired for `fire_time`."""
        if self.fire_time_field is None:
            return self.input
        return {**(self.input or {}), self.fire_time_field: fire_time.astimezone(UTC).isoformat()}

    def due(self, *, since: datetime, now: datetime) -> list[datetime]:
        """Return the times to fire now, oldest first.

        `since`: when it was to fire next, not after `now`. If that was set by hand to a time that does not match the
        expression, it replaces the first time.
        """
        limit = self.catch_up if self.misfire_policy is MisfirePolicy.ALL else 1
        fire_times = self.times.latest(since=since, until=now, limit=limit) or [since]
        if self.misfire_policy is MisfirePolicy.SKIP:
            return [fire_time for fire_time in fire_times if now - fire_time <= self.grace]
        return fire_times


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """The outcome of one due schedule, reported before the commit."""

    schedule: str
    """Name of the schedule."""
    fire_times: tuple[datetime, ...] = ()
    """The times that it was fired for, oldest first."""
    job_ids: tuple[Any, ...] = ()
    """The jobs made, one for each time."""
    missed_since: datetime | None = None
    """The first time that was skipped: missed, or while the last job's chain was open; None if none was."""
    error: str | None = None
    """Why it cannot fire, until its row is corrected."""
