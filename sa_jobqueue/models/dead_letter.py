"""`dead_letter`: deaths of jobs, their reasons and resolutions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Integer, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from sa_jobqueue.models.base import CURRENT_XID, Companion, Where, Xid8, enum_type, id_type

IdT = TypeVar("IdT")


class DeadLetterMixin(Companion, Generic[IdT]):
    """One death of one job. A job that is redriven and dies again has another row; at most one is unresolved."""

    @declared_attr
    def id(cls) -> Mapped[IdT]:
        """Primary key. A job that dies more than once has several."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-20)

    @declared_attr
    def job_id(cls) -> Mapped[IdT]:
        """Id of the job, which may be deleted."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-19)

    @declared_attr
    def chain_id(cls) -> Mapped[IdT]:
        """Id of the job's chain."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-18)

    queue: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-17)
    """The job's queue when it died."""
    fairness_key: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"), sort_order=-16)
    """The job's fairness key when it died; empty for none."""
    type_name: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-15)
    """The job's type."""
    input: Mapped[Any] = mapped_column(JSONB(none_as_null=False), nullable=True, sort_order=-14)
    """The job's input, as it was stored."""
    input_version: Mapped[int] = mapped_column(Integer, nullable=False, sort_order=-13)
    """Version of the input's schema."""

    @declared_attr
    def reason(cls) -> Mapped[str]:
        """One of `DeadReason`."""
        return mapped_column(enum_type(cls.__jobqueue__, "dead_letter_reason"), nullable=False, sort_order=-12)

    error: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True), sort_order=-11)
    """Last error in full; for a lost job, its last worker."""
    error_fingerprint: Mapped[str | None] = mapped_column(Text, sort_order=-10)
    """Equal for errors of the same type raised at the same place, whatever their message. Group by it."""
    attempts: Mapped[int] = mapped_column(Integer, nullable=False, sort_order=-9)
    """Number of the attempt at which it died."""
    died_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=-8
    )
    """When it died, by the database's clock."""

    @declared_attr
    def resolution(cls) -> Mapped[str | None]:
        """One of `Resolution`; null while unresolved."""
        return mapped_column(enum_type(cls.__jobqueue__, "dead_letter_resolution"), sort_order=-7)

    resolved_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When it was resolved, by the database's clock."""
    resolved_by: Mapped[str | None] = mapped_column(Text)
    """User who resolved it, as given by the caller."""
    changed_xid: Mapped[int] = mapped_column(Xid8(), nullable=False, server_default=CURRENT_XID)
    """Id of the transaction that last wrote the row, for exact incremental reads."""

    __key__ = ("id",)
    __checks__: ClassVar = {"ck_dead_letter_resolved": "(resolution IS NULL) = (resolved_at IS NULL)"}
    __indexes__: ClassVar = {
        "uq_dead_letter_open": ("job_id", Where("resolution IS NULL")),
        "ix_dead_letter_job": ("job_id",),
        "ix_dead_letter_changed": ("changed_xid",),
    }
