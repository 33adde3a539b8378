"""`queue`, `job_type`: settings of queues and job types, which every worker applies."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CheckConstraint, Double, Integer, PrimaryKeyConstraint, SmallInteger, Text, func, text
from sqlalchemy.dialects.postgresql import INTERVAL, TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column
from sqlalchemy.sql.elements import conv

from sa_jobqueue.models.base import Companion, within_times
from sa_jobqueue.types import LONGEST, MAX_WEIGHT, MIN_WEIGHT


class _Controlled(Companion):
    """Settings of both queues and job types. A queue or type without a row has the defaults."""

    paused_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True), sort_order=-19)
    """Since when no job of it is started; null while they are."""
    paused_by: Mapped[str | None] = mapped_column(Text, sort_order=-18)
    """Who paused it, as they said."""
    global_concurrency: Mapped[int | None] = mapped_column(Integer, sort_order=-10)
    """How many of its jobs may run at once, across all workers; null for any number."""
    rate_limit: Mapped[int | None] = mapped_column(Integer, sort_order=-9)
    """How many of its jobs may be started within `rate_period`, across all workers; null for any number."""
    rate_period: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-8)
    """Of `rate_limit`."""
    rate_burst: Mapped[int | None] = mapped_column(Integer, sort_order=-7)
    """How many may be started at once after a pause of that rate; null for `rate_limit`."""
    rate_algorithm: Mapped[str | None] = mapped_column(Text, sort_order=-7)
    """How that rate counts, a `RateAlgorithm`; null for a token bucket."""
    created_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=9
    )
    """When its row was inserted."""
    updated_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=10
    )
    """When its settings were last changed by the operations of this library."""


def _rules(name: Any, noun: str, key: str, *others: str) -> tuple[Any, ...]:
    def check(what: str, condition: str) -> CheckConstraint:
        return CheckConstraint(condition, name=conv(name(f"ck_{noun}_{what}")))

    return (
        PrimaryKeyConstraint(key, *others, name=conv(name(f"pk_{noun}"))),
        check(key, f"{key} <> ''"),
        check("paused", "paused_by IS NULL OR paused_at IS NOT NULL"),
        check("times", within_times("paused_at", "created_at", "updated_at")),
        check("global_concurrency", "global_concurrency >= 1"),
        check(
            "rate",
            "(rate_limit IS NULL) = (rate_period IS NULL) AND rate_limit >= 1 AND rate_period > '0'::interval"
            f" AND rate_period <= '{LONGEST.days} days'::interval"
            " AND (rate_burst IS NULL OR rate_limit IS NOT NULL) AND rate_burst >= 1"
            " AND (rate_algorithm IS NULL OR rate_limit IS NOT NULL)"
            " AND rate_algorithm IN ('token_bucket', 'sliding_window', 'local_token_bucket')"
            " AND (rate_burst IS NULL OR rate_algorithm IS DISTINCT FROM 'sliding_window')",
        ),
    )


class QueueMixin(_Controlled):
    """Settings of one queue, or of one fairness key in it. Jobs do not refer to it: a queue needs no row."""

    name: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-20)
    """As jobs have it in `queue`."""
    fairness_key: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"), sort_order=-19)
    """Empty for the settings of the queue; else these are of the jobs of this key alone, beside those of their queue."""
    weight: Mapped[int] = mapped_column(SmallInteger, nullable=False, server_default=text("1"), sort_order=-15)
    """Its share of the workers that serve several queues, beside the weights of the others; 1 to 100."""
    concurrency_per_key: Mapped[int | None] = mapped_column(Integer, sort_order=-14)
    """Maximum number of jobs per fairness key that run at once, across all workers, unless the key has its own setting; null
    for no limit."""
    retry_base: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-6)
    """Initial backoff of job types without a retry policy; null, with the next two, for the library's default."""
    retry_factor: Mapped[float | None] = mapped_column(Double, sort_order=-6)
    """Of the same."""
    retry_cap: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-6)
    """Of the same."""
    retain_completed: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-4)
    """How long its completed chains are kept at least; null: as long as elsewhere said."""
    retain_cancelled: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-3)
    """The same of cancelled ones."""
    retain_dead: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-2)
    """The same of dead ones."""

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        name = cls.__jobqueue__.name
        return (
            *_rules(name, "queue", "name", "fairness_key"),
            CheckConstraint(f"weight BETWEEN {MIN_WEIGHT} AND {MAX_WEIGHT}", name=conv(name("ck_queue_weight"))),
            CheckConstraint(
                "num_nulls(retry_base, retry_factor, retry_cap) IN (0, 3) AND retry_base > '0'::interval"
                " AND retry_factor >= 1 AND retry_factor < 'Infinity'"
                " AND retry_cap BETWEEN retry_base AND '36500 days'::interval",
                name=conv(name("ck_queue_retry")),
            ),
            CheckConstraint("concurrency_per_key >= 1", name=conv(name("ck_queue_concurrency_per_key"))),
            {"schema": cls.__jobqueue__.schema},
        )


class JobTypeMixin(_Controlled):
    """Settings of one job type. Jobs do not refer to it: a type needs no row."""

    # Not `name`: the constraint that PostgreSQL 18 makes of its NOT NULL would be called as that of `job.type_name`.
    type_name: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-20)
    """As jobs have it in `type_name`."""

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (*_rules(cls.__jobqueue__.name, "job_type", "type_name"), {"schema": cls.__jobqueue__.schema})
