"""`queue`, `job_type`: settings of queues and job types, which every worker applies."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from sqlalchemy import Double, Integer, SmallInteger, Text, func, text
from sqlalchemy.dialects.postgresql import INTERVAL, TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion, within_times
from sa_jobqueue.types import LONGEST, MAX_PRIORITY, MAX_RATE_COST, MAX_WEIGHT, MIN_PRIORITY, MIN_WEIGHT


class _Controlled(Companion):
    """Settings of both queues and job types. A queue or type without a row has the defaults."""

    paused_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True), sort_order=-19)
    """When it was paused; null if it is not."""
    paused_by: Mapped[str | None] = mapped_column(Text, sort_order=-18)
    """User who paused it."""
    global_concurrency: Mapped[int | None] = mapped_column(Integer, sort_order=-10)
    """Maximum number of its jobs that run at a time, across all workers; null for no limit."""
    rate_limit: Mapped[int | None] = mapped_column(Integer, sort_order=-9)
    """How many of its jobs may start within `rate_period`, across all workers; null for no limit."""
    rate_period: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-8)
    """Period of `rate_limit`."""
    rate_burst: Mapped[int | None] = mapped_column(Integer, sort_order=-7)
    """How many may start together after a pause; null means `rate_limit`."""
    created_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=9
    )
    """When the row was inserted."""
    updated_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=10
    )
    """When an operation of this library last changed the settings."""


def _rules(noun: str, key: str) -> dict[str, str]:
    rules = {
        key: f"{key} <> ''",
        "paused": "paused_by IS NULL OR paused_at IS NOT NULL",
        "times": within_times("paused_at", "created_at", "updated_at"),
        "global_concurrency": "global_concurrency >= 1",
        "rate": "(rate_limit IS NULL) = (rate_period IS NULL) AND rate_limit >= 1 AND rate_period > '0'::interval"
        f" AND rate_period <= '{LONGEST.days} days'::interval"
        " AND (rate_burst IS NULL OR rate_limit IS NOT NULL) AND rate_burst >= 1",
    }
    return {f"ck_{noun}_{rule}": condition for rule, condition in rules.items()}


class QueueMixin(_Controlled):
    """Settings of one queue, or of one fairness key in it. Jobs do not refer to it: a queue needs no row."""

    name: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-20)
    """Name of the queue, as in `job.queue`."""
    fairness_key: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"), sort_order=-19)
    """Empty for the settings of the queue. Otherwise they apply to this key, in addition to those of the queue."""
    weight: Mapped[int] = mapped_column(SmallInteger, nullable=False, server_default=text("1"), sort_order=-15)
    """Its share among the queues of a worker, relative to their weights; 1 to 100."""
    concurrency_per_key: Mapped[int | None] = mapped_column(Integer, sort_order=-14)
    """Maximum number of jobs per fairness key that run at a time, unless the key has its own setting; null for no
    limit."""
    retry_base: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-6)
    """Initial backoff of job types without a retry policy."""
    retry_factor: Mapped[float | None] = mapped_column(Double, sort_order=-6)
    """Factor of that backoff."""
    retry_cap: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-6)
    """Maximum of that backoff."""
    retain_completed: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-4)
    """Minimum time for which its completed chains are kept."""
    retain_cancelled: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-3)
    """The same for cancelled chains."""
    retain_dead: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-2)
    """The same for dead chains."""

    __key__ = ("name", "fairness_key")
    __checks__: ClassVar = {
        **_rules("queue", "name"),
        "ck_queue_weight": f"weight BETWEEN {MIN_WEIGHT} AND {MAX_WEIGHT}",
        "ck_queue_retry": "num_nulls(retry_base, retry_factor, retry_cap) IN (0, 3) AND retry_base > '0'::interval"
        " AND retry_factor >= 1 AND retry_factor < 'Infinity'"
        " AND retry_cap BETWEEN retry_base AND '36500 days'::interval",
        "ck_queue_concurrency_per_key": "concurrency_per_key >= 1",
        "ck_queue_retention": " AND ".join(
            f"{name} BETWEEN '0'::interval AND '{LONGEST.days} days'::interval"
            for name in ("retain_completed", "retain_cancelled", "retain_dead")
        ),
    }


class JobTypeMixin(_Controlled):
    """What workers have recorded for one job type, and its settings. Jobs do not refer to it: a type needs no row."""

    # Not `name`: the constraint that PostgreSQL 18 makes of its NOT NULL would be called as that of `job.type_name`.
    type_name: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-20)
    """Name of the type, as in `job.type_name`."""
    queue: Mapped[str | None] = mapped_column(Text, sort_order=-15)
    """Queue that its handler declares, as recorded by the worker that started last. Jobs written without a queue have it."""
    priority: Mapped[int | None] = mapped_column(SmallInteger, sort_order=-14)
    """Priority that its handler declares; see `queue`."""
    max_attempts: Mapped[int | None] = mapped_column(Integer, sort_order=-13)
    """Attempts that its handler declares; see `queue`."""
    timeout: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-12)
    """Timeout that its handler declares, null for none; see `queue`."""
    rate_cost: Mapped[int | None] = mapped_column(Integer, sort_order=-11)
    """How much each attempt counts against rates, null for 1; see `queue`."""
    input_version: Mapped[int | None] = mapped_column(Integer, sort_order=-11)
    """Version of its payloads; see `queue`."""

    __key__ = ("type_name",)
    __checks__: ClassVar = {
        **_rules("job_type", "type_name"),
        "ck_job_type_declared": f"queue <> '' AND priority BETWEEN {MIN_PRIORITY} AND {MAX_PRIORITY} AND max_attempts >= 1"
        f" AND timeout > '0'::interval AND timeout <= '{LONGEST.days} days'::interval"
        f" AND rate_cost BETWEEN 1 AND {MAX_RATE_COST} AND input_version >= 1",
    }
