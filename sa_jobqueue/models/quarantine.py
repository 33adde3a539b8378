"""`quarantine`: the rows that workers could not write."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Integer, Text, func, text
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion


class QuarantineMixin(Companion):
    """One row that a set-based write had to leave out; the rest of its batch was written.

    A worker inserts it when the write fails, tries again after growing pauses, and deletes it when the write succeeds. Rows
    that no worker has tried for a while are deleted. Empty as a rule.
    """

    subject: Mapped[str] = mapped_column(Text, nullable=False)
    """Id of the job, chain or dead letter, or name of the schedule, queue, job type or event.

    Or the name of an application's foreign key that keeps chains past their retention, which is no failure.
    """
    statement: Mapped[str] = mapped_column(Text, nullable=False)
    """Kind of write that fails, one of `RefusedWrite`."""
    sqlstate: Mapped[str | None] = mapped_column(Text)
    """SQLSTATE of the error; null if the driver raised it without the server."""
    error: Mapped[str] = mapped_column(Text, nullable=False)
    """Type and first line of the error."""
    worker_id: Mapped[str | None] = mapped_column(Text)
    """Worker that tried last; null for an archiver."""
    failures: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("1"))
    """Number of times the write has failed."""
    first_failed_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When it failed first."""
    retry_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """When it is tried again."""

    __key__ = ("subject", "statement")
