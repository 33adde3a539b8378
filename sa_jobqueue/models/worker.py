"""`worker`: one row for each worker process, updated by its heartbeats."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import Integer, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion, one_of
from sa_jobqueue.types import WorkerState


class WorkerMixin(Companion):
    """One worker. Its heartbeat updates this row, which keeps all its leases alive."""

    id: Mapped[str] = mapped_column(Text, nullable=False)
    """`leased_by` of its jobs: its name and a random suffix, new at every start."""
    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Its name; the host name by default."""
    host: Mapped[str] = mapped_column(Text, nullable=False)
    """Host name."""
    pid: Mapped[int] = mapped_column(Integer, nullable=False)
    """Process id."""
    version: Mapped[str] = mapped_column(Text, nullable=False)
    """Version of this library."""
    queues: Mapped[list[str]] = mapped_column(ARRAY(Text), nullable=False)
    """The queues it serves."""
    job_types: Mapped[list[str]] = mapped_column(ARRAY(Text), nullable=False)
    """The job types that it handles."""
    concurrency: Mapped[int] = mapped_column(Integer, nullable=False)
    """Maximum number of jobs it runs at a time."""
    started_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When it registered, by the database's clock."""
    heartbeat_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """Its last heartbeat, by the database's clock."""
    heartbeat_pause: Mapped[timedelta] = mapped_column(INTERVAL, nullable=False, server_default=text("'0'"))
    """How much longer than its heartbeat interval the next one may take, because it has been idle for long."""
    state: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("'running'"))
    """One of `WorkerState`."""
    drain_requested_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When it was asked to drain; it reads this at its next heartbeat."""

    selectors: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    """The selectors of its queues, by queue name. Null: the worker has not reported any."""

    type_slots: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    """Maximum number of concurrent jobs by job type, for handlers that set it. Null: not reported."""

    type_versions: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    """The latest version of the payload that it knows, by job type. Null: not reported."""

    progress: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    """Progress of the attempts it runs, by job id, as of its last heartbeat. Null: none has reported any."""

    report: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    """As of its last heartbeat: `resident_bytes` of its process, and `declared`, a digest of each job type, queue and
    schedule that its code declares. Null: not reported."""

    stuck_threads: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("0"))
    """How many of its slots are taken by threads of attempts that have ended, as of its last heartbeat."""

    failure: Mapped[str | None] = mapped_column(Text)
    """Its component that keeps failing, with the error, as of its last heartbeat; null if none does."""

    concurrency_requested: Mapped[int | None] = mapped_column(Integer)
    """Concurrency set at run time; null: the concurrency it was started with."""

    __key__ = ("id",)
    __checks__: ClassVar = {
        "ck_worker_state": one_of("state", WorkerState),
        "ck_worker_concurrency_requested": "concurrency_requested >= 1",
    }
    # A row is rewritten every few seconds: leave space on its page, so that a heartbeat stays a HOT update
    # (300 updates while vacuum is held back: 0.11 ms to 0.12 ms each).
    __storage__: ClassVar = {"fillfactor": 10, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 1000}
