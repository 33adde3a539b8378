"""`job_bulk_staging`, `job_bulk_write`, `job_bulk_reject`: the tables that make bulk writes exactly once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import BigInteger, Integer, LargeBinary, SmallInteger, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from sa_jobqueue.ddl import LATEST, stamp
from sa_jobqueue.models.base import CURRENT_XID, Companion, Where, Xid8, id_parameter, id_type

IdT = TypeVar("IdT")


class StageMixin(Companion, Generic[IdT]):
    """One row of a bulk write, written by one of its tasks and deleted when the write commits.

    The table is unlogged: a server that crashes empties it, and the write whose rows are missing then refuses to commit.
    """

    write_id: Mapped[str] = mapped_column(Text, nullable=False, sort_order=-99)
    """Id of the write, as in `job_bulk_write`."""
    sequence: Mapped[int] = mapped_column(BigInteger, nullable=False, sort_order=-98)
    """Number of its batch; 0 for a batch write."""
    task_id: Mapped[int] = mapped_column(BigInteger, nullable=False, sort_order=-97)
    """Id of the task attempt that wrote the row; only rows of successful ones are used."""
    row: Mapped[int] = mapped_column(BigInteger, nullable=False, sort_order=-96)
    """Position among the task's rows, from 0."""

    @declared_attr
    def id(cls) -> Mapped[IdT | None]:
        """Id of the job."""
        return mapped_column(id_type(cls.__jobqueue__), sort_order=-90)

    queue: Mapped[str | None] = mapped_column(Text, sort_order=-89)
    """The job's queue; null for its type's."""
    fairness_key: Mapped[str | None] = mapped_column(Text, sort_order=-89)
    """The job's fairness key; null for none."""
    type_name: Mapped[str | None] = mapped_column(Text, sort_order=-88)
    """The job's type; null for a rejected row that has none."""
    priority: Mapped[int | None] = mapped_column(SmallInteger, sort_order=-87)
    """The job's priority; null for its type's."""
    input: Mapped[Any] = mapped_column(JSONB, nullable=True, sort_order=-86)
    """The job's input, as JSON."""
    input_version: Mapped[int | None] = mapped_column(Integer, sort_order=-85)
    """Version of the input's shape; null for its type's."""
    scheduled_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True), sort_order=-84)
    """When the job is due; null for now. With `delay`, the later of the two."""
    delay: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-83)
    """How long after the commit the job is due; null for none."""
    max_attempts: Mapped[int | None] = mapped_column(Integer, sort_order=-82)
    """The job's `max_attempts`; null for its type's."""
    timeout: Mapped[timedelta | None] = mapped_column(INTERVAL, sort_order=-81)
    """Timeout of one attempt; null for none."""
    deduplication_key: Mapped[str | None] = mapped_column(Text, sort_order=-80)
    """The job's deduplication key; null for none."""

    @declared_attr
    def blockers(cls) -> Mapped[list[IdT] | None]:
        """Ids of the chains that the job waits for, in order."""
        return mapped_column(ARRAY(id_parameter(cls.__jobqueue__)), sort_order=-79)

    on_failure: Mapped[str | None] = mapped_column(Text, sort_order=-78)
    """What happens to the job if a blocker fails; null for `wait`."""
    trace_context: Mapped[str | None] = mapped_column(Text, sort_order=-77)
    """The job's trace context; null for none."""
    rejected_field: Mapped[str | None] = mapped_column(Text, sort_order=-76)
    """Column that was rejected; null for a valid row."""
    rejected_reason: Mapped[str | None] = mapped_column(Text, sort_order=-75)
    """Why it was rejected; null for a valid row."""
    record: Mapped[str | None] = mapped_column(Text, sort_order=-74)
    """The whole row as JSON text, if it was rejected."""
    staged_at: Mapped[datetime] = mapped_column(
        TIMESTAMP(timezone=True), nullable=False, server_default=func.now(), sort_order=-73
    )
    """When it was staged; rows left for a day belong to a write that failed."""
    rate_cost: Mapped[int | None] = mapped_column(Integer, sort_order=-72)
    """The job's `rate_cost`; null for 1."""
    expires_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True), sort_order=-71)
    """Until when the job may start; null for no limit."""
    ordering_key: Mapped[str | None] = mapped_column(Text, sort_order=-70)
    """The job's ordering key; null for none."""
    deadline: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True), sort_order=-69)
    """The job's deadline; null for none."""

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        # No key in the database: rows are only ever added and taken by the whole write.
        return {"primary_key": ["write_id", "sequence", "task_id", "row"]}

    __indexes__: ClassVar = {"ix_job_bulk_staging_write": ("write_id", "sequence")}
    __options__: ClassVar = {"prefixes": ["UNLOGGED"]}


class WriteMixin(Companion):
    """One bulk write that has committed. The row makes repeating the write a no-op, and has its counts."""

    write_id: Mapped[str] = mapped_column(Text, nullable=False)
    """Id given by the caller, or a random one; for a stream, the id of its query."""
    sequence: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Number of the stream's batch; 0 for a batch write."""
    staged: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Number of rows staged: enqueued, duplicates and rejected."""
    enqueued: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Number of rows that became jobs."""
    duplicates: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Number of rows whose deduplication key an open chain already had."""
    rejected: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Number of rows written to `job_bulk_reject`."""
    fingerprint: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("0"))
    """Sum of the hashes of the rows, without ids and times: a repeated write is compared with it."""
    row_hashes: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    """These hashes, eight bytes each, for a day, of a write of up to a million rows. If it is repeated with fewer rows, they
    show whether all of them were written."""
    written_by: Mapped[str | None] = mapped_column(Text)
    """Application name of the writer."""
    written_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """Start of the transaction that committed it, by the database's clock."""
    changed_xid: Mapped[int] = mapped_column(Xid8(), nullable=False, server_default=CURRENT_XID)
    """Id of the transaction that committed it and enqueued its jobs."""

    __key__ = ("write_id", "sequence")
    __indexes__: ClassVar = {
        "ix_job_bulk_write_written_at": ("written_at",),
        "ix_job_bulk_write_hashes": ("written_at", Where("row_hashes IS NOT NULL")),
    }
    __options__: ClassVar = {"comment": stamp("pipeline", LATEST).comment}


class RejectMixin(Companion):
    """One rejected row of a bulk write, with the reason. Kept until it is deleted by an operator."""

    write_id: Mapped[str] = mapped_column(Text, nullable=False)
    """Id of the write, as in `job_bulk_write`."""
    sequence: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Number of its batch."""
    task_id: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Id of the Spark task attempt."""
    row: Mapped[int] = mapped_column(BigInteger, nullable=False)
    """Position among the task's rows, from 0."""
    field: Mapped[str] = mapped_column(Text, nullable=False)
    """Column that was rejected."""
    reason: Mapped[str] = mapped_column(Text, nullable=False)
    """Why it was rejected."""
    record: Mapped[str | None] = mapped_column(Text)
    """The row as JSON text."""
    rejected_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When it was rejected, by the database's clock."""

    __key__ = ("write_id", "sequence", "task_id", "row")
