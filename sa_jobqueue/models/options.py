"""The options of a job, each declared once. Pure.

`JobMixin.__init__`, the options of handlers and schedules, COPY and Spark's writes check and pass them on by this table.
`scripts/signatures` writes the parameters of these functions from it, and a test compares it with the newest DDL and with
Spark's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.models import checks
from sa_jobqueue.policies.fairness import check_fairness_key
from sa_jobqueue.types import MAX_PRIORITY, MAX_RATE_COST, MIN_PRIORITY

Check: TypeAlias = Callable[[str, Any], object]
"""Checks the value of the option of this name. Raises: InvalidJobError naming it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOption:
    """How one option of a job is given, checked and stored."""

    annotation: str
    """Type of the argument, as source."""
    check: Check
    """Checks a value that is not None."""
    column: str | None
    """Type of its column of `job` in DDL; None if its value is stored otherwise."""
    default: Any = None
    """Value that the database stores where neither the job nor its type sets one; None: null, or as `check` says."""
    handler: str = ""
    """Name of the option of handlers that sets it for their jobs, empty if there is none; `job_type` has a column for it."""
    of_schedules: bool = False
    """Whether a schedule sets it for its jobs."""
    spark: Literal["STRING", "INT", "SECONDS", "TIMESTAMP", "ARRAY"]
    """Type of its column of a DataFrame."""
    staged: str
    """Name of its column of a DataFrame and of `job_bulk_staging`."""
    is_shared: bool = True
    """Whether all jobs of `Handler.enqueue_many` can have the same value."""


def _number(least: int, most: int) -> Check:
    return partial(check_number, least=least, most=most, refuse=InvalidJobError)


DEFAULT_QUEUE: Final = "default"
MAX_INTEGER: Final = 2**31 - 1
_TEXT: Final = "str | None"
_NUMBER: Final = "int | None"

JOB_OPTIONS: Final[Mapping[str, JobOption]] = {
    "queue": JobOption(
        annotation=_TEXT,
        check=checks.check_name,
        column="text",
        default=DEFAULT_QUEUE,
        handler="queue",
        of_schedules=True,
        spark="STRING",
        staged="queue",
    ),
    "fairness_key": JobOption(
        annotation="str | int | None",
        check=lambda _, value: check_fairness_key(value),
        column="text",
        default="",
        of_schedules=True,
        spark="STRING",
        staged="fairness_key",
    ),
    "priority": JobOption(
        annotation=_NUMBER,
        check=_number(MIN_PRIORITY, MAX_PRIORITY),
        column="smallint",
        default=0,
        handler="priority",
        of_schedules=True,
        spark="INT",
        staged="priority",
    ),
    "delay": JobOption(
        annotation="timedelta | None",
        check=lambda _, value: checks.due_at(delay=value, at=None),
        column=None,
        spark="SECONDS",
        staged="delay",
    ),
    "at": JobOption(
        annotation="datetime | None",
        check=lambda _, value: checks.due_at(delay=None, at=value),
        column=None,
        spark="TIMESTAMP",
        staged="scheduled_at",
    ),
    "max_attempts": JobOption(
        annotation=_NUMBER,
        check=_number(1, MAX_INTEGER),
        column="integer",
        default=20,  # with the default backoff a job that keeps failing dies after about four hours, eight at most
        handler="max_attempts",
        of_schedules=True,
        spark="INT",
        staged="max_attempts",
    ),
    "timeout": JobOption(
        annotation="timedelta | None",
        check=partial(check_duration, refuse=InvalidJobError),
        column="interval",
        handler="timeout",
        of_schedules=True,
        spark="SECONDS",
        staged="timeout",
    ),
    "id": JobOption(
        annotation="Any",
        check=lambda _, value: None,  # by `checks.check_id`, which needs the class
        column="id",
        spark="STRING",
        staged="id",
        is_shared=False,
    ),
    "deduplication_key": JobOption(
        annotation=_TEXT,
        check=checks.check_text,
        column="text",
        spark="STRING",
        staged="deduplication_key",
        is_shared=False,
    ),
    "blockers": JobOption(
        annotation="Iterable[Any]",
        check=lambda _, value: None,  # by `waits`, which makes them
        column=None,
        spark="ARRAY",
        staged="blockers",
        is_shared=False,
    ),
    "rate_cost": JobOption(
        annotation=_NUMBER,
        check=_number(1, MAX_RATE_COST),
        column="integer",
        handler="rate_cost",
        of_schedules=True,
        spark="INT",
        staged="rate_cost",
    ),
    "input_version": JobOption(
        annotation=_NUMBER,
        check=_number(1, MAX_INTEGER),
        column="integer",
        default=1,
        handler="version",
        spark="INT",
        staged="input_version",
    ),
    "expires_at": JobOption(
        annotation="datetime | ColumnElement[datetime] | None",
        check=checks.check_instant_or_expression,
        column="timestamp with time zone",
        spark="TIMESTAMP",
        staged="expires_at",
    ),
    "ordering_key": JobOption(
        annotation=_TEXT,
        check=checks.check_text,
        column="text",
        spark="STRING",
        staged="ordering_key",
    ),
    "deadline": JobOption(
        annotation="datetime | ColumnElement[datetime] | None",
        check=checks.check_instant_or_expression,
        column="timestamp with time zone",
        spark="TIMESTAMP",
        staged="deadline",
    ),
}
"""The options by name, in the order of the arguments."""

DECLARED: Final = tuple(name for name, option in JOB_OPTIONS.items() if option.handler)
"""The options that a handler sets for its jobs; inserted without them, a row has what workers recorded for the type."""
OF_SCHEDULES: Final = tuple(name for name, option in JOB_OPTIONS.items() if option.of_schedules)
"""The options that a schedule sets for its jobs."""
OF_ROW: Final = tuple(
    name
    for name, option in JOB_OPTIONS.items()
    if option.column is not None and not option.handler and name not in {"id", "fairness_key"}
)
"""The other options that are columns, stored as they are given."""


def check_option(name: str, value: object) -> None:
    """Check an option of a job, or of a handler for all of its jobs. Raises: InvalidJobError naming it."""
    JOB_OPTIONS[name].check(name, value)
