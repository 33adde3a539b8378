"""`job_chain`: each chain as one row, read from a view.

Relationships load when they are first touched (`contributing/decisions.md`): an async session
refreshes them (`await session.refresh(job, ["chain"])`) or asks for them with the query (`selectinload(Job.chain)`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

from sqlalchemy import Integer, MetaData, Text, event, or_
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.orm import Mapped, declared_attr, foreign, mapped_column, registry, relationship, remote

from sa_jobqueue.errors import ReadOnlyError
from sa_jobqueue.models.base import Companion, enum_type, id_type
from sa_jobqueue.types import JobStatus

IdT = TypeVar("IdT")


class ChainMixin(AsyncAttrs, Companion, Generic[IdT]):
    """One chain: a root job and its continuations, as of the time it was read. Changed only through its jobs.

    Constructing, changing or deleting one is a `ReadOnlyError`, at the latest when the session flushes.
    """

    @declared_attr
    def id(cls) -> Mapped[IdT]:
        """Id of the root job."""
        return mapped_column(id_type(cls.__jobqueue__), primary_key=True, sort_order=-2)

    queue: Mapped[str] = mapped_column(Text)
    """Queue of the root job."""
    fairness_key: Mapped[str] = mapped_column(Text)
    """Fairness key of the root job; empty for none."""
    type_name: Mapped[str] = mapped_column(Text)
    """Type of the root job."""
    input: Mapped[Any] = mapped_column(JSONB)
    """Input of the root job, as JSON."""
    input_version: Mapped[int] = mapped_column(Integer)
    """Version of that input's schema."""

    @declared_attr
    def status(cls) -> Mapped[JobStatus]:
        """Status of its last job."""
        return mapped_column(enum_type(cls.__jobqueue__, "job_status"), sort_order=-1)

    output: Mapped[Any] = mapped_column(JSONB)
    """Output of its last job."""
    error: Mapped[Any | None] = mapped_column(JSONB)
    """The last error of a chain that is dead or cancelled."""
    created_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True))
    """When the root job was enqueued."""
    completed_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    """When its last job ended; null while it is open."""
    length: Mapped[int] = mapped_column(Integer)
    """Number of its jobs so far."""

    @declared_attr
    def last_job_id(cls) -> Mapped[IdT]:
        """Id of its last job so far."""
        return mapped_column(id_type(cls.__jobqueue__))

    last_type_name: Mapped[str] = mapped_column(Text)
    """Type of its last job so far."""
    deduplication_key: Mapped[str | None] = mapped_column(Text)
    """Deduplication key of the root job; null for none."""

    @declared_attr
    def jobs(cls) -> Mapped[list[Any]]:
        """Its jobs so far, the root first. Loaded on first access."""
        job: Any = cls.__job__

        def jobs_of_it() -> Any:
            # Not by chain_id, which has no index: the root by its primary key, the others by `uq_job_chain`.
            return or_(remote(foreign(job.id)) == cls.id, remote(foreign(job.root_id)) == cls.id)

        return relationship(job, primaryjoin=jobs_of_it, order_by=lambda: job.chain_index, viewonly=True)

    @declared_attr
    def blocking(cls) -> Mapped[list[Any]]:
        """The blockers that refer to it, resolved ones too, by job; each has `job` and `is_resolved`. Loaded on access."""
        job: Any = cls.__job__
        return relationship(
            lambda: job.Blocker,
            primaryjoin=lambda: remote(foreign(job.Blocker.blocked_by_chain_id)) == cls.id,
            order_by=lambda: job.Blocker.job_id,
            viewonly=True,
        )

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ReadOnlyError("a chain is what its jobs are: add its first job, and the chain is there")

    def __repr__(self) -> str:
        # Only what is loaded: a repr must not query, and the payloads may be private.
        state = self.__dict__
        return f"<{type(self).__name__} {state.get('id')} {state.get('type_name')} {state.get('status')}>"


def map_chain(job: Any, mappers: registry) -> type[ChainMixin[Any]]:
    """Make and map the `Chain` class of a `Job` class.

    Not as a subclass of the application's base: what such a base gives every table, an audit column say, is not in the
    view. In a separate metadata, so that neither `create_all` nor Alembic takes the view for a table.
    """
    layout = job.__jobqueue__
    body = {"__jobqueue__": layout, "__job__": job, "__noun__": "job_chain", "__tablename__": layout.name("job_chain")}
    body |= {"__module__": job.__module__, "__doc__": ChainMixin.__doc__, "__qualname__": f"{job.__qualname__}.Chain"}
    chain: type[ChainMixin[Any]] = type(f"{job.__name__}Chain", (ChainMixin,), {**body, "metadata": MetaData()})
    return mappers.mapped(chain)


@event.listens_for(ChainMixin, "before_insert", propagate=True)
@event.listens_for(ChainMixin, "before_update", propagate=True)
@event.listens_for(ChainMixin, "before_delete", propagate=True)
def _refuse(mapper: Any, connection: Any, chain: ChainMixin[Any]) -> NoReturn:
    raise ReadOnlyError(f"chain {chain.__dict__.get('id')} is read from a view: change, cancel or delete its jobs")
