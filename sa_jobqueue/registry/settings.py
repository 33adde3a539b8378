"""What can be said of a queue or a job type beside its jobs: share, limits, retries, and how long it is kept. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.policies.fairness import LONGEST_KEY, is_fairness_key
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.policies.retention import NO_RETENTION, Retention
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.types import LONGEST, MAX_WEIGHT, MIN_WEIGHT

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}")
_MOST: Final = 2**31 - 1
LIMITS: Final = ("global_concurrency", "rate_limit", "rate_period", "rate_burst", "rate_algorithm")
"""Limits of both queues and job types."""
RETRY: Final = ("retry_base", "retry_factor", "retry_cap")
"""Retry settings of queues: see `retry_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of a queue, stored in its row. A queue without a row has the defaults. None means no limit.

    `name`: name of the queue. `fairness_key`: the key that these settings apply to, in addition to those of its queue;
    empty for the queue itself. `weight`: its share among the queues of a worker, or among the other keys; 1 to 100.
    `global_concurrency`: maximum number of its jobs that run at a time, across all workers. `concurrency_per_key`: the same
    for each fairness key that has no limit itself.
    `rate_limit`: how many jobs may start within `rate_period`, across all workers, each counted with its `rate_cost`.
    `rate_burst`: how many may start together after a pause; `rate_limit` by default. `rate_algorithm`: a token bucket by
    default; a sliding window has no burst.
    `retry`: backoff of jobs whose handlers have no retry policy, with jitter; None means `Backoff()`. `retention`: how long
    ended chains are kept; only for queues, not for fairness keys.
    Raises: InvalidOptionError naming the field.
    """

    name: str
    fairness_key: str = ""
    weight: int = 1
    concurrency_per_key: int | None = None
    global_concurrency: int | None = None
    rate_limit: int | None = None
    rate_period: timedelta | None = None
    rate_burst: int | None = None
    rate_algorithm: RateAlgorithm | str | None = None
    retry: Backoff | None = None
    retention: Retention = NO_RETENTION

    def __post_init__(self) -> None:
        check_names("name", [self.name])
        check_fairness_key(self.fairness_key)
        if self.fairness_key and self.concurrency_per_key is not None:
            reason = "is a setting of the queue, for each of its keys; use global_concurrency, or omit fairness_key"
            raise InvalidOptionError("concurrency_per_key", reason)
        _check_number("weight", self.weight, MIN_WEIGHT, MAX_WEIGHT)
        if self.concurrency_per_key is not None:
            _check_number("concurrency_per_key", self.concurrency_per_key, 1, _MOST)
        _check_limits(self)
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
        ages = self.retention
        retained = {"retain_completed": ages.completed, "retain_cancelled": ages.cancelled, "retain_dead": ages.dead}
        wait = self.retry
        retried = (None, None, None) if wait is None else (wait.base, wait.factor, wait.cap)
        return {
            "name": self.name,
            "fairness_key": self.fairness_key,
            "weight": self.weight,
            "concurrency_per_key": self.concurrency_per_key,
            **_limits(self),
            **dict(zip(RETRY, retried, strict=True)),
            **retained,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSettings:
    """Settings of a job type, stored in its row. A type without a row has the defaults.

    `type_name`: name of the job type. The other fields are those of `QueueSettings`, and apply to all jobs of the type.

    Raises: InvalidOptionError naming the field.
    """

    type_name: str
    global_concurrency: int | None = None
    rate_limit: int | None = None
    rate_period: timedelta | None = None
    rate_burst: int | None = None
    rate_algorithm: RateAlgorithm | str | None = None

    def __post_init__(self) -> None:
        check_names("type_name", [self.type_name])
        _check_limits(self)

    @property
    def row(self) -> dict[str, Any]:
        """Values of the row, by column."""
        return {"type_name": self.type_name, **_limits(self)}


def retry_of(row: Any) -> Backoff | None:
    """Return the backoff in the columns `RETRY` of a queue's row; None if they are null."""
    if row.retry_base is None:
        return None
    return Backoff(base=row.retry_base, factor=row.retry_factor, cap=row.retry_cap)


def check_names(field: str, names: Any) -> None:
    """Check names of queues or job types. Raises: InvalidOptionError."""
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidOptionError(
                field, f"must be 1 to 100 letters, digits and _.:/- not starting with .:/-, got {name!r}"
            )


def check_fairness_key(key: object) -> None:
    """Check the fairness key of settings; empty for those of the queue. Raises: InvalidOptionError."""
    if not is_fairness_key(key):
        reason = f"must be text of at most {LONGEST_KEY} characters without NUL, empty for none, got {key!r}"
        raise InvalidOptionError("fairness_key", reason)


def _limits(settings: QueueSettings | TypeSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in LIMITS}


def _check_limits(settings: QueueSettings | TypeSettings) -> None:
    for field in ("global_concurrency", "rate_limit", "rate_burst"):
        if getattr(settings, field) is not None:
            _check_number(field, getattr(settings, field), 1, _MOST)
    period = settings.rate_period
    if period is not None and (not isinstance(period, timedelta) or not timedelta(0) < period <= LONGEST):
        raise InvalidOptionError("rate_period", f"must be a timedelta above zero, or None, got {period!r}")
    if (settings.rate_limit is None) != (period is None):
        raise InvalidOptionError("rate_period", "must be set if and only if rate_limit is set")
    if settings.rate_burst is not None and settings.rate_limit is None:
        raise InvalidOptionError("rate_burst", "needs rate_limit and rate_period")
    if settings.rate_algorithm is None:
        return
    if settings.rate_algorithm not in list(RateAlgorithm):  # a list: what cannot be hashed is refused as well
        reason = f"must be one of {', '.join(RateAlgorithm)}, or None for a bucket, got {settings.rate_algorithm!r}"
        raise InvalidOptionError("rate_algorithm", reason)
    if settings.rate_limit is None:
        raise InvalidOptionError("rate_algorithm", "needs rate_limit and rate_period")
    if settings.rate_algorithm == RateAlgorithm.SLIDING_WINDOW and settings.rate_burst is not None:
        raise InvalidOptionError("rate_burst", "must be None for a sliding_window, which may start rate_limit jobs at once")


def _check_retry(retry: object) -> None:
    if not isinstance(retry, Backoff):
        raise InvalidOptionError("retry", f"must be a Backoff, or None; only a handler can have a function: got {retry!r}")
    if not retry.jitter:
        raise InvalidOptionError("retry", "must have jitter=True: only a handler's Backoff can be without jitter")
    if not retry.factor < math.inf or retry.cap > LONGEST:
        raise InvalidOptionError("retry", f"of a queue has a finite factor, and a cap of at most {LONGEST}, got {retry!r}")


def _check_number(field: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidOptionError(field, f"must be a whole number from {low} to {high:,}, got {value!r}")
