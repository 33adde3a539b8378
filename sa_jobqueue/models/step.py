"""`job_step`: the recorded results of a job's steps, so that later attempts do not repeat them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Integer, Text, text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from sa_jobqueue.models.base import Companion, Where, id_type, one_of
from sa_jobqueue.types import StepKind

IdT = TypeVar("IdT")


class StepMixin(Companion, Generic[IdT]):
    """One step of a job (`AttemptContext.step` and its relatives). A job without steps has no row here.

    Deleted with its job, even by SQL; not archived.
    """

    @declared_attr
    def job_id(cls) -> Mapped[IdT]:
        """Id of the job; not a foreign key, as in `job_attempt`."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-20)

    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the step, unique in the job together with `key`."""
    key: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"))
    """Key of one round of a loop; empty for a step outside a loop."""
    kind: Mapped[str] = mapped_column(Text, nullable=False)
    """One of `StepKind`."""
    attempt: Mapped[int] = mapped_column(Integer, nullable=False)
    """Number of the attempt that recorded it."""
    output: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    """Its result, as JSON, encoded by the codec of the job's type, or the number of calls of a retry; null for one without a
    result."""
    started_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """When it started, by the database's clock."""
    completed_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When it completed; of a sleep, when it ends; of a retry, when it is called again; null while it waits for an event."""
    event: Mapped[str | None] = mapped_column(Text)
    """Name of the event that it waits or waited for; null for other kinds."""
    deadline: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When the wait times out; null for other kinds, and until the first attempt of a job that only waits for an event."""

    @declared_attr
    def child_chain_id(cls) -> Mapped[IdT | None]:
        """Id of the job whose result it waits or waited for; null for other kinds. Not a foreign key."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=True, sort_order=20)

    __key__ = ("job_id", "name", "key")
    __checks__: ClassVar = {"ck_job_step_kind": one_of("kind", StepKind), "ck_job_step_name": "name <> ''"}
    __indexes__: ClassVar = {
        "ix_job_step_event": ("event", Where("event IS NOT NULL AND completed_at IS NULL")),
        "ix_job_step_child": ("child_chain_id", Where("child_chain_id IS NOT NULL AND completed_at IS NULL")),
    }
