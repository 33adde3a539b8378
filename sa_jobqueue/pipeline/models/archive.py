"""`archive_run`, `archive_chain`: which finished chains went where, and how far a run has come."""

from __future__ import annotations

from datetime import date, datetime
from typing import ClassVar, Generic, TypeVar
from uuid import UUID

from sqlalchemy import BigInteger, Date, Integer, Text, Uuid, func, text
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from sa_jobqueue.models.base import Companion, id_type, one_of
from sa_jobqueue.types import ArchiveState

IdT = TypeVar("IdT")


class ArchiveRunMixin(Companion):
    """One bounded part of an archive, with files under the run's id. A run that was killed resumes from its state."""

    id: Mapped[UUID] = mapped_column(Uuid(), nullable=False)
    """Id of the run; part of the names of its files."""
    path: Mapped[str] = mapped_column(Text, nullable=False)
    """Location of the archive."""
    engine: Mapped[str] = mapped_column(Text, nullable=False)
    """Engine that writes the files: `pyarrow` or `spark`."""
    cutoff: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """Only chains that ended before this time are archived."""
    state: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("'planned'"))
    """One of `ArchiveState`."""
    chains: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of chains moved; of chains to move while the run is not done."""
    jobs: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of jobs in its files."""
    attempts: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of attempts in its files."""
    dead_letters: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of dead letters in its files."""
    blockers: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of blockers in its files."""
    retained: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of chains that changed or were deleted by others after they were written: the files do not have them."""
    started_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When the run was planned, by the database's clock."""
    changed_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When its state last changed, by the database's clock."""

    __key__ = ("id",)
    __checks__: ClassVar = {"ck_archive_run_state": one_of("state", ArchiveState)}


class ArchiveChainMixin(Companion, Generic[IdT]):
    """A chain of an unfinished run. The row is deleted in the transaction in which the archiver deletes the chain.

    So the rows left when a run has nothing more to delete are chains that changed, or that were deleted meanwhile: they are
    removed from its files. Retention deletes no chain that has such a row.
    """

    run_id: Mapped[UUID] = mapped_column(Uuid(), nullable=False, sort_order=-21)
    """Id of the run."""

    @declared_attr
    def chain_id(cls) -> Mapped[IdT]:
        """Id of the chain's root job."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-20)

    part: Mapped[int] = mapped_column(Integer, nullable=False)
    """Number of the batch in which it is read, from 0; batches are ordered by date."""
    completed_on: Mapped[date] = mapped_column(Date, nullable=False)
    """UTC day on which it ended: the partition of its rows."""

    __key__ = ("chain_id", "run_id")
    __indexes__: ClassVar = {"ix_archive_chain_part": ("run_id", "part")}
