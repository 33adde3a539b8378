"""`job_attempt`: what became of every attempt that did not succeed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from sa_jobqueue.models.base import CURRENT_XID, Companion, Xid8, enum_type, id_type

IdT = TypeVar("IdT")


class AttemptMixin(Companion, Generic[IdT]):
    """One unsuccessful attempt. Append-only; a job whose first attempt succeeds has no row here."""

    @declared_attr
    def job_id(cls) -> Mapped[IdT]:
        """Id of the job; not a foreign key, because a trigger deletes the rows of many jobs together."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-20)

    attempt: Mapped[int] = mapped_column(Integer, nullable=False, sort_order=-19)
    """Number of the attempt, from 1."""
    worker_id: Mapped[str | None] = mapped_column(Text, sort_order=-18)
    """Worker that ran it, which may no longer exist."""
    started_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True), sort_order=-17)
    """When it was claimed, by the database's clock."""
    ended_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=-16
    )
    """When its end was recorded, by the database's clock."""

    @declared_attr
    def outcome(cls) -> Mapped[str]:
        """One of `AttemptOutcome`."""
        return mapped_column(enum_type(cls.__jobqueue__, "job_attempt_outcome"), nullable=False, sort_order=-15)

    error: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    """`{"type", "message", "traceback"}` of the exception."""
    error_fingerprint: Mapped[str | None] = mapped_column(Text)
    """Equal for errors of the same type raised at the same place, whatever their message."""
    changed_xid: Mapped[int] = mapped_column(Xid8(), nullable=False, server_default=CURRENT_XID)
    """Id of the transaction that wrote the row, for exact incremental reads."""

    __key__ = ("job_id", "attempt")
    __indexes__: ClassVar = {"ix_job_attempt_changed": ("changed_xid",)}
