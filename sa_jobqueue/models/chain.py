"""`job_chain`: each chain as one row, read from a view; and what leads from jobs and edges to chains and back.

Relationships load when they are first touched (`docs/engineering/decisions.md`): an async session
refreshes them (`await session.refresh(job, ["chain"])`) or asks for them with the query (`selectinload(Job.chain)`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar, cast

from sqlalchemy import Column, Integer, MetaData, Table, Text, event, or_
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.orm import Mapped, Relationship, foreign, registry, relationship, remote

from sa_jobqueue.errors import ReadOnlyError
from sa_jobqueue.layout import Layout
from sa_jobqueue.models.base import Companion, id_type, status_type
from sa_jobqueue.types import JobStatus

IdT = TypeVar("IdT")


class ChainMixin(AsyncAttrs, Companion, Generic[IdT]):
    """One chain: a root job and its continuations, as of the time it was read. Changed only through its jobs.

    Constructing, changing or deleting one is a `ReadOnlyError`, at the latest when the session flushes.
    """

    # For readers and type checkers: `map_chain` gives them their columns and relationships.
    id: Mapped[IdT]
    """Id of the root job."""
    queue: Mapped[str]
    """Queue of the root job."""
    fairness_key: Mapped[str]
    """Fairness key of the root job; empty for none."""
    type_name: Mapped[str]
    """Type of the root job."""
    input: Mapped[Any]
    """Input of the root job, as JSON."""
    input_version: Mapped[int]
    """Version of that input's schema."""
    status: Mapped[JobStatus]
    """Status of its last job."""
    output: Mapped[Any]
    """Output of its last job."""
    error: Mapped[Any | None]
    """The last error of a chain that is dead or cancelled."""
    created_at: Mapped[datetime]
    """When the root job was enqueued."""
    completed_at: Mapped[datetime | None]
    """When its last job ended; null while it is open."""
    length: Mapped[int]
    """Number of its jobs so far."""
    last_job_id: Mapped[IdT]
    """Id of its last job so far."""
    last_type_name: Mapped[str]
    """Type of its last job so far."""
    deduplication_key: Mapped[str | None]
    """Deduplication key of the root job; null for none."""
    jobs: Mapped[list[Any]]
    """Its jobs so far, the root first. Loaded on first access."""
    blocking: Mapped[list[Any]]
    """The blockers that refer to it, resolved ones too, by job; each has `job` and `is_resolved`. Loaded on access."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ReadOnlyError("a chain is what its jobs are: add its first job, and the chain is there")

    def __repr__(self) -> str:
        # Only what is loaded: a repr must not query, and the payloads may be private.
        state = self.__dict__
        return f"<{type(self).__name__} {state.get('id')} {state.get('type_name')} {state.get('status')}>"


def map_chain(job: Any, mappers: registry) -> type[ChainMixin[Any]]:
    """Make and map the `Chain` class of a `Job` class.

    Imperatively, and not as a subclass of the application's base: what such a base gives every table, an audit column
    say, is not in the view.
    """
    noun = f"{job.__name__}Chain"
    body = {"__jobqueue__": job.__jobqueue__, "__job__": job, "__module__": job.__module__, "__doc__": ChainMixin.__doc__}
    chain: Any = type(noun, (ChainMixin,), body | {"__qualname__": f"{job.__qualname__}.Chain"})

    def jobs_of_it() -> Any:
        # Not by chain_id, which has no index: the root by its primary key, the others by `uq_job_chain`.
        return or_(remote(foreign(job.id)) == chain.id, remote(foreign(job.root_id)) == chain.id)

    def edges_to_it() -> Any:
        return remote(foreign(job.Blocker.blocked_by_chain_id)) == chain.id

    properties = {
        "jobs": relationship(job, primaryjoin=jobs_of_it, order_by=lambda: job.chain_index, viewonly=True),
        "blocking": relationship(
            lambda: job.Blocker, primaryjoin=edges_to_it, order_by=lambda: job.Blocker.job_id, viewonly=True
        ),
    }
    mappers.map_imperatively(chain, chain_view(job.__jobqueue__), properties=properties)
    return cast("type[ChainMixin[Any]]", chain)


def chain_view(layout: Layout) -> Table:
    """Return the view, in a separate metadata, so that neither `create_all` nor Alembic takes it for a table."""
    key, instant = id_type(layout), TIMESTAMP(timezone=True)
    return Table(
        layout.name("job_chain"),
        MetaData(),
        Column("id", key, primary_key=True),
        Column("queue", Text),
        Column("type_name", Text),
        Column("input", JSONB),
        Column("input_version", Integer),
        Column("status", status_type(layout, owner=False)),
        Column("output", JSONB),
        Column("error", JSONB),
        Column("created_at", instant),
        Column("completed_at", instant),
        Column("length", Integer),
        Column("last_job_id", key),
        Column("last_type_name", Text),
        Column("deduplication_key", Text),
        Column("fairness_key", Text),
        schema=layout.schema,
    )


def chain_of(job: Any) -> Relationship[Any]:
    """Return the relationship from a `Job` class to the chain it belongs to."""
    return relationship(lambda: job.Chain, primaryjoin=lambda: foreign(job.chain_id) == remote(job.Chain.id), viewonly=True)


def edges_of(job: Any) -> Relationship[Any]:
    """Return the relationship from a `Job` class to its blockers, in their order."""
    return relationship(
        lambda: job.Blocker,
        primaryjoin=lambda: remote(foreign(job.Blocker.job_id)) == job.id,
        order_by=lambda: job.Blocker.index,
        viewonly=True,
    )


def chain_of_edge(edge: Any) -> Relationship[Any]:
    """Return the relationship from a `Blocker` class to the chain waited for."""

    def waited_for() -> Any:
        return foreign(edge.blocked_by_chain_id) == remote(edge.__job__.Chain.id)

    return relationship(lambda: edge.__job__.Chain, primaryjoin=waited_for, viewonly=True)


def job_of_edge(edge: Any) -> Relationship[Any]:
    """Return the relationship from a `Blocker` class to the job that waits."""
    return relationship(
        lambda: edge.__job__, primaryjoin=lambda: foreign(edge.job_id) == remote(edge.__job__.id), viewonly=True
    )


@event.listens_for(ChainMixin, "before_insert", propagate=True)
@event.listens_for(ChainMixin, "before_update", propagate=True)
@event.listens_for(ChainMixin, "before_delete", propagate=True)
def _refuse(mapper: Any, connection: Any, chain: ChainMixin[Any]) -> NoReturn:
    raise ReadOnlyError(f"chain {chain.__dict__.get('id')} is read from a view: change, cancel or delete its jobs")
