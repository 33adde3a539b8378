"""`job_audit`: who changed what by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Integer, Text, Uuid, func
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion


class AuditMixin(Companion):
    """One call of an operation with `by`, recorded in its transaction: a change made by an operator.

    It has no payloads. A row outlives the changed rows; it is deleted when `Retention.audit` is over.
    """

    id: Mapped[UUID] = mapped_column(Uuid(), nullable=False)
    """Primary key, a UUIDv7 in the order of the calls."""
    done_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """Time of the call, by the database's clock."""
    done_by: Mapped[str] = mapped_column(Text, nullable=False)
    """User, as given by the caller."""
    operation: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the operation, such as `cancel_jobs`."""
    arguments: Mapped[Any] = mapped_column(JSONB(none_as_null=False), nullable=False)
    """Arguments of the call: ids, names or a filter, and the new values. Lists are cut at 100 items."""
    matched: Mapped[int] = mapped_column(Integer, nullable=False)
    """Number of rows that matched."""
    changed: Mapped[int] = mapped_column(Integer, nullable=False)
    """Number of rows that were changed."""
    ids: Mapped[Any] = mapped_column(JSONB(none_as_null=False), nullable=False)
    """Ids or names of the changed rows, at most 100."""

    __key__ = ("id",)
