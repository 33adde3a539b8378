"""`archive_run`, `archive_chain`: which finished chains went where, and how far a run has come."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Date, Index, Integer, PrimaryKeyConstraint, Text, Uuid, func, text
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column
from sqlalchemy.sql.elements import conv

from sa_jobqueue.models.base import Companion, id_type
from sa_jobqueue.types import ArchiveState

IdT = TypeVar("IdT")


class ArchiveRunMixin(Companion):
    """One bounded part of an archive: its files lie under the run's id. A run that was killed goes on from its state."""

    id: Mapped[UUID] = mapped_column(Uuid(), nullable=False)
    """Names its files."""
    path: Mapped[str] = mapped_column(Text, nullable=False)
    """The archive's place."""
    engine: Mapped[str] = mapped_column(Text, nullable=False)
    """Who writes the files: `pyarrow` or `spark`."""
    cutoff: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """Only chains that ended before."""
    state: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("'planned'"))
    """One of `ArchiveState`."""
    chains: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Number of chains it moved, or plans to move if it is not done."""
    jobs: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """How many jobs are in its files."""
    attempts: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """How many attempts."""
    dead_letters: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """How many dead letters."""
    blockers: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """How many edges."""
    survivors: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """How many chains changed after they were written, and stayed; they are not in its files any more."""
    started_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When it was planned, by the database's clock."""
    changed_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When its state last changed, by the database's clock."""

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        name = cls.__jobqueue__.name
        return (
            PrimaryKeyConstraint("id", name=conv(name("pk_archive_run"))),
            CheckConstraint(
                "state IN ({})".format(", ".join(f"'{state}'" for state in ArchiveState)),
                name=conv(name("ck_archive_run_state")),
            ),
            {"schema": cls.__jobqueue__.schema},
        )


class ArchiveChainMixin(Companion, Generic[IdT]):
    """A chain that a run has taken on and that is still in the tables: its row here goes in the commit that deletes it.

    So what is left when a run has nothing more to delete are the chains that stay, to be taken out of its files.
    """

    run_id: Mapped[UUID] = mapped_column(Uuid(), nullable=False, sort_order=-21)
    """The run."""

    @declared_attr
    def chain_id(cls) -> Mapped[IdT]:
        """The chain, by its root job."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-20)

    part: Mapped[int] = mapped_column(Integer, nullable=False)
    """Which part of the run it is read with, from 0; a part is some thousand jobs, in the order of their dates."""
    completed_on: Mapped[date] = mapped_column(Date, nullable=False)
    """The day, in UTC, on which it ended: the partition of all its rows."""

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        name = cls.__jobqueue__.name
        return (
            PrimaryKeyConstraint("run_id", "chain_id", name=conv(name("pk_archive_chain"))),
            Index(conv(name("ix_archive_chain_part")), "run_id", "part"),
            {"schema": cls.__jobqueue__.schema},
        )
