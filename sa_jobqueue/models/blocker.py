"""`job_blocker`: the chains that jobs wait for, in the order in which handlers receive them."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Boolean, Integer, Text, text
from sqlalchemy.orm import Mapped, declared_attr, foreign, mapped_column, relationship, remote

from sa_jobqueue.models.base import Companion, enum_type, id_type
from sa_jobqueue.models.chain import ChainMixin

IdT = TypeVar("IdT")


class BlockerMixin(Companion, Generic[IdT]):
    """A job and a chain that it waits for. Kept after the chain has completed, so that its output can be read."""

    @declared_attr
    def job_id(cls) -> Mapped[IdT]:
        """Id of the job that waits."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-20)

    @declared_attr
    def blocked_by_chain_id(cls) -> Mapped[IdT]:
        """Id of the chain that it waits for: of its root job."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-19)

    index: Mapped[int] = mapped_column("index", Integer, nullable=False, sort_order=-18)
    """Position among the job's blockers, from 0."""
    is_resolved: Mapped[bool] = mapped_column(Boolean, nullable=False, server_default=text("false"), sort_order=-17)
    """Whether the job no longer waits for this chain. Set once, when the end of the chain lets the job continue."""

    @declared_attr
    def on_failure(cls) -> Mapped[str]:
        """Effect of the chain's death on the job, one of `OnFailure`."""
        kind = enum_type(cls.__jobqueue__, "job_blocker_on_failure")
        return mapped_column(kind, nullable=False, server_default=text("'wait'"), sort_order=-16)

    trace_context: Mapped[str | None] = mapped_column(Text)
    """W3C traceparent of the operation that declared it."""

    @declared_attr
    def chain(cls) -> Mapped[ChainMixin[IdT]]:
        """The chain that the job waits for. Loaded on first access."""
        edge: Any = cls

        def waited_for() -> Any:
            return foreign(edge.blocked_by_chain_id) == remote(edge.__job__.Chain.id)

        return relationship(lambda: edge.__job__.Chain, primaryjoin=waited_for, viewonly=True)

    @declared_attr
    def job(cls) -> Mapped[Any]:
        """The job that waits. Loaded on first access."""
        edge: Any = cls
        return relationship(edge.__job__, primaryjoin=lambda: foreign(edge.job_id) == remote(edge.__job__.id), viewonly=True)

    __key__ = ("job_id", "blocked_by_chain_id")
    __job_ids__: ClassVar = {"fk_job_blocker_job": "job_id", "fk_job_blocker_chain": "blocked_by_chain_id"}
    __indexes__: ClassVar = {"ix_job_blocker_chain": ("blocked_by_chain_id", "job_id")}
