"""`schedule`: schedules, and when they fire next."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Boolean, Integer, SmallInteger, Text, func, text
from sqlalchemy.dialects.postgresql import INTERVAL, JSONB, TIMESTAMP, TSTZMULTIRANGE
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from sa_jobqueue.models.base import Companion, id_type, within_times
from sa_jobqueue.types import LONGEST, MAX_PRIORITY, MAX_RATE_COST, MIN_PRIORITY

IdT = TypeVar("IdT")


class ScheduleMixin(Companion, Generic[IdT]):
    """One schedule. Firing it enqueues the job and advances `next_fire_at` in one transaction, under its row lock."""

    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the schedule."""
    type_name: Mapped[str] = mapped_column(Text, nullable=False)
    """Type of its jobs."""
    queue: Mapped[str | None] = mapped_column(Text)
    """Queue of its jobs; null for that of their type, as recorded when they are enqueued."""
    fairness_key: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"))
    """Fairness key of its jobs; empty for none."""
    priority: Mapped[int | None] = mapped_column(SmallInteger)
    """Priority of its jobs; null for that of their type."""
    input: Mapped[Any] = mapped_column(JSONB, nullable=True)
    """Input of its jobs, as JSON."""
    input_version: Mapped[int | None] = mapped_column(Integer)
    """Version of the input's schema."""
    fire_time_field: Mapped[str | None] = mapped_column(Text)
    """Field of the input that receives the scheduled time, in ISO 8601 and UTC; null for none."""
    max_attempts: Mapped[int | None] = mapped_column(Integer)
    """Maximum number of attempts of its jobs; null for that of their type."""
    timeout: Mapped[timedelta | None] = mapped_column(INTERVAL)
    """Timeout of its jobs; null for none, or that of their type where queue, priority or attempts are null."""
    rate_cost: Mapped[int | None] = mapped_column(Integer)
    """Rate cost of its jobs; null means 1."""
    cron: Mapped[str] = mapped_column(Text, nullable=False)
    """Cron expression, in `time_zone`."""
    time_zone: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("'UTC'"))
    """IANA name of the time zone."""
    misfire_policy: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("'one'"))
    """Misfire policy for times at which no worker fired it: `skip` them, fire `one` for all of them, or `all`."""
    catch_up: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("100"))
    """With `all`: maximum number of missed times to fire, the latest ones."""
    grace: Mapped[timedelta] = mapped_column(INTERVAL, nullable=False, server_default=text("'00:01:00'"))
    """With `skip`: how late a time may be fired before it counts as missed."""
    overlap: Mapped[bool] = mapped_column(Boolean, nullable=False, server_default=text("true"))
    """Whether it fires while the chain of its previous job is open."""
    paused_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When it was paused; null if it is not."""
    paused_by: Mapped[str | None] = mapped_column(Text)
    """User who paused it."""
    next_fire_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When it fires next; may be set by hand. Null: not computed yet by a worker."""
    last_fire_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """The last time it fired for; null before the first."""
    fired: Mapped[Any] = mapped_column(TSTZMULTIRANGE, nullable=False, server_default=text("'{}'"), deferred=True)
    """The times that it fired or was run for, as ranges: none is fired again, even when its job was deleted."""
    missed_from: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """First of the times that it left out because no worker fired it in time; null when they were run, or acknowledged."""
    missed_until: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """Last of those times; null where `missed_from` is."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why it cannot fire, if the row is not a valid schedule; set it to null when you correct the row."""
    source: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("'table'"))
    """Where it is defined: in `code`, which is synchronised, or in this `table`."""
    created_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When it was created."""
    updated_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When an operation of this library last changed it."""

    @declared_attr
    def last_job_id(cls) -> Mapped[IdT | None]:
        """Its last job, which may have been deleted."""
        return mapped_column(id_type(cls.__jobqueue__))

    __key__ = ("name",)
    __checks__: ClassVar = {
        "ck_schedule_name": "name <> ''",
        "ck_schedule_priority": f"priority BETWEEN {MIN_PRIORITY} AND {MAX_PRIORITY}",
        "ck_schedule_misfire_policy": "misfire_policy IN ('skip', 'one', 'all')",
        "ck_schedule_catch_up": "catch_up BETWEEN 1 AND 10000",
        "ck_schedule_grace": "grace >= '0'::interval AND grace <= '3650 days'::interval",
        "ck_schedule_max_attempts": "max_attempts >= 1",
        "ck_schedule_timeout": f"timeout > '0'::interval AND timeout <= '{LONGEST.days} days'::interval",
        "ck_schedule_times": within_times(
            *("next_fire_at", "last_fire_at", "missed_from", "missed_until"),
            *("paused_at", "created_at", "updated_at"),
        ),
        "ck_schedule_rate_cost": f"rate_cost BETWEEN 1 AND {MAX_RATE_COST}",
        "ck_schedule_source": "source IN ('code', 'table')",
        "ck_schedule_paused": "paused_by IS NULL OR paused_at IS NOT NULL",
    }
    __indexes__: ClassVar = {"ix_schedule_due": ("next_fire_at",)}
