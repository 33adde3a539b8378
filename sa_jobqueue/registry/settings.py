"""Settings of queues and job types, each declared once: share, limits, retries and retention. Pure.

The fields of `QueueColumns` are columns of `queue`; `job_type` has those of `Limits`. Statements, the live settings of
workers, the options of the command line and the forms of the dashboard are derived from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.errors.removed import refuse_removed
from sa_jobqueue.models.checks import NAME_RULE, is_name
from sa_jobqueue.policies.fairness import LONGEST_KEY, is_fairness_key
from sa_jobqueue.policies.retention import NO_RETENTION, Retention
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.types import LONGEST, MAX_WEIGHT


@dataclass(frozen=True, slots=True)
class Setting:
    """How operators read and write one setting: the metadata of its field."""

    label: str
    """Its name in a form."""
    help: str
    """Its meaning, in one sentence."""
    empty: str = "no limit"
    """What holds without it."""
    most: int = 2**31 - 1
    """Of numbers: the highest."""
    of_keys: bool = True
    """Whether fairness keys have it."""
    kind: type[Any] = int
    """Type of its values, from the annotation of its field: int, float or timedelta."""

    def check(self, name: str, value: object) -> None:
        """Check a value. Raises: InvalidOptionError naming the setting."""
        if self.kind is int:
            check_number(name, value, 1, self.most)
        if self.kind is timedelta:
            check_duration(name, value)


def settings_of(limits_class: type[Limits]) -> dict[str, Setting]:
    """Return the settings that a class has, by name."""
    setting_by_name = {}
    for name, hint in get_type_hints(limits_class, include_extras=True).items():
        if get_origin(hint) is Annotated:
            annotation, setting = get_args(hint)
            setting_by_name[name] = replace(setting, kind=next(iter(get_args(annotation)), annotation))
    return setting_by_name


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a queue, a fairness key or a job type, across all workers. None means no limit.

    `global_concurrency`: maximum number of its jobs that run at a time.
    `rate_limit`: how many jobs may start per `rate_period`, on average, each counted with its `rate_cost`. `rate_burst`: how
    many may start together after a pause; `rate_limit` by default. In any period at most `rate_limit` and `rate_burst`
    together start.
    """

    global_concurrency: Annotated[
        int | None, Setting("Concurrency", "Maximum number of jobs to run at a time, across all workers.")
    ] = None
    rate_limit: Annotated[
        int | None, Setting("Rate limit", "Maximum number of jobs to start per period, across all workers.")
    ] = None
    rate_period: Annotated[timedelta | None, Setting("Rate period", "Period of the rate limit, such as 1m.", empty="1m")] = (
        None
    )
    rate_burst: Annotated[
        int | None,
        Setting("Rate burst", "Maximum number of jobs to start together after an idle time.", empty="the rate limit"),
    ] = None

    if not TYPE_CHECKING:  # to a type checker, what is missing stays missing

        def __new__(cls, *_: Any, **settings: Any) -> Any:
            refuse_removed(settings)
            return super().__new__(cls)

    def _check(self) -> None:
        for name, setting in settings_of(type(self)).items():
            if (value := getattr(self, name)) is not getattr(type(self), name):  # the default needs no check
                setting.check(name, value)
        if self.rate_limit is not None and self.rate_period is None:
            raise InvalidOptionError("rate_period", "is needed with a rate limit, such as 1m")
        if self.rate_limit is None and self.rate_period is not None:
            raise InvalidOptionError("rate_period", "needs a rate limit")
        if self.rate_burst is not None and self.rate_limit is None:
            raise InvalidOptionError("rate_burst", "needs rate_limit and rate_period")


@dataclass(frozen=True, kw_only=True)
class QueueShare:
    """The share of a queue or a fairness key.

    `weight`: its share among the queues of a worker, or among the other keys; 1 to 100.
    `concurrency_per_key`: maximum number of running jobs, across all workers, of each fairness key that has no limit itself.
    """

    weight: Annotated[int, Setting("Weight", "Share relative to other queues, 1 to 100.", empty="1", most=MAX_WEIGHT)] = 1
    concurrency_per_key: Annotated[
        int | None,
        Setting(
            "Concurrency per key",
            "Maximum number of jobs per fairness key to run at a time, across all workers.",
            of_keys=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class QueueColumns(Limits, QueueShare):
    """All settings of a queue or a fairness key, as its row has them.

    `retry_base`, `retry_factor`, `retry_cap`: backoff of jobs whose handlers have no retry policy.
    `retain_completed`, `retain_cancelled`, `retain_dead`: how long ended chains are kept.
    """

    retry_base: Annotated[
        timedelta | None,
        Setting("Retry: first wait", "Initial backoff, such as 10s, for job types without a retry policy.", empty="default"),
    ] = None
    retry_factor: Annotated[
        float | None, Setting("Retry: factor", "Factor by which the backoff grows with each attempt.", empty="2")
    ] = None
    retry_cap: Annotated[timedelta | None, Setting("Retry: longest wait", "Maximum backoff, such as 6h.", empty="1h")] = None
    retain_completed: Annotated[
        timedelta | None,
        Setting("Keep completed", "Retention of completed chains, such as 30d.", empty="default", of_keys=False),
    ] = None
    retain_cancelled: Annotated[
        timedelta | None, Setting("Keep cancelled", "Retention of cancelled chains.", empty="default", of_keys=False)
    ] = None
    retain_dead: Annotated[
        timedelta | None, Setting("Keep dead", "Retention of dead chains.", empty="default", of_keys=False)
    ] = None

    @property
    def retry(self) -> Backoff | None:
        """The backoff; None if none of it is set."""
        parameters = {"base": self.retry_base, "factor": self.retry_factor, "cap": self.retry_cap}
        set_parameters: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
        return Backoff(**set_parameters) if set_parameters else None

    def of_queue(self, name: str, fairness_key: str = "") -> QueueSettings:
        """Return them as the settings of a queue."""
        retention = Retention(completed=self.retain_completed, cancelled=self.retain_cancelled, dead=self.retain_dead)
        limits = {setting: getattr(self, setting) for setting in settings_of(QueueSettings)}
        return QueueSettings(name, fairness_key=fairness_key, retry=self.retry, retention=retention, **limits)


@dataclass(frozen=True, kw_only=True)
class QueueName:
    """A queue, or a fairness key in it; the key is empty for the queue itself."""

    name: str = field(kw_only=False)
    fairness_key: str = ""


@dataclass(frozen=True, kw_only=True)
class QueueSettings(Limits, QueueShare, QueueName):
    """Settings of a queue, stored in its row. A queue without a row has the defaults. None means no limit.

    `name`: name of the queue. `fairness_key`: the key that these settings apply to, in addition to those of its queue;
    empty for the queue itself. `weight`: its share among the queues of a worker, or among the other keys; 1 to 100.
    `global_concurrency`: maximum number of its jobs that run at a time, across all workers. `concurrency_per_key`: the same
    for each fairness key that has no limit itself.
    `rate_limit`, `rate_period`, `rate_burst`: as in `Limits`.
    `retry`: backoff of jobs whose handlers have no retry policy, with jitter; None means `Backoff()`. `retention`: how long
    ended chains are kept; only for queues, not for fairness keys.
    """

    retry: Backoff | None = None
    retention: Retention = NO_RETENTION

    def __post_init__(self) -> None:
        check_names("name", [self.name])
        check_fairness_key(self.fairness_key)
        if self.fairness_key and self.concurrency_per_key is not None:
            reason = "is a setting of the queue, for each of its keys; use global_concurrency, or omit fairness_key"
            raise InvalidOptionError("concurrency_per_key", reason)
        self._check()
        if self.retry is not None:
            _check_retry(self.retry)
        if not isinstance(self.retention, Retention):
            raise InvalidOptionError("retention", f"must be a Retention, got {self.retention!r}")
        if self.fairness_key and self.retention != NO_RETENTION:
            raise InvalidOptionError(
                "retention", "is a setting of a queue, a job type or the JobQueue, not of a fairness key"
            )
        if self.retention.dead_letters is not None:
            reason = "cannot be set for a queue; set it for the JobQueue or a job type"
            raise InvalidOptionError("retention.dead_letters", reason)

    @property
    def row(self) -> dict[str, Any]:
        """Values of the row, by column."""
        parts = {"retry": self.retry, "retain": self.retention}
        values = {name: getattr(self, name) for name in ("name", "fairness_key", *settings_of(QueueSettings))}
        split = {setting: setting.split("_") for setting in settings_of(QueueColumns) if setting not in values}
        return values | {setting: getattr(parts[part], attribute, None) for setting, (part, attribute) in split.items()}


@dataclass(frozen=True, kw_only=True)
class TypeName:
    """A job type."""

    type_name: str


@dataclass(frozen=True, kw_only=True)
class TypeSettings(Limits, TypeName):
    """Settings of a job type, stored in its row. A type without a row has the defaults.

    `type_name`: name of the job type. The other fields are those of `Limits`, and apply to all jobs of the type.
    """

    def __post_init__(self) -> None:
        check_names("type_name", [self.type_name])
        self._check()

    @property
    def row(self) -> dict[str, Any]:
        """Values of the row, by column."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def check_names(field: str, names: Any) -> None:
    """Check names of queues or job types."""
    for name in names:
        if not is_name(name):
            raise InvalidOptionError(field, f"{NAME_RULE}, got {name!r}")


def check_fairness_key(key: object) -> None:
    """Check the fairness key of settings; empty for those of the queue."""
    if not is_fairness_key(key):
        reason = f"must be text of at most {LONGEST_KEY} characters without NUL, empty for none, got {key!r}"
        raise InvalidOptionError("fairness_key", reason)


def _check_retry(retry: object) -> None:
    if not isinstance(retry, Backoff):
        raise InvalidOptionError("retry", f"must be a Backoff, or None; only a handler can have a function: got {retry!r}")
    if not retry.jitter:
        raise InvalidOptionError("retry", "must have jitter=True: only a handler's Backoff can be without jitter")
    if not retry.factor < math.inf or retry.cap > LONGEST:
        raise InvalidOptionError("retry", f"of a queue has a finite factor, and a cap of at most {LONGEST}, got {retry!r}")
