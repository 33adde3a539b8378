"""Enqueueing on an `AsyncSession`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations import (
    Deduplicate,
)
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.types import Enqueued

InT = TypeVar("InT")
JobT = TypeVar("JobT", bound=JobMixin[Any])


async def enqueue(session: AsyncSession, job: JobT, *, deduplicate: Deduplicate | None = None) -> tuple[JobT, Enqueued]:
    """Enqueue a job unless its key is taken; return the job that has it, and what became of this one."""
    return await session.run_sync(operations.enqueue, job, deduplicate=deduplicate)


async def enqueue_unique(session: AsyncSession, new: Iterable[tuple[JobT, Deduplicate]]) -> list[tuple[JobT, Enqueued]]:
    """Enqueue many jobs, each unless its key is taken; return for each what `enqueue` returns, in the order given."""
    return await session.run_sync(operations.enqueue_unique, new)


async def enqueue_many(session: AsyncSession, new: Iterable[JobT], *, model: type[JobT] | None = None) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the order given."""
    return await session.run_sync(operations.enqueue_many, new, model=model)


async def enqueue_many_unique(session: AsyncSession, new: Iterable[tuple[JobT, Deduplicate]]) -> list[tuple[Any, Enqueued]]:
    """Enqueue thousands of jobs, each unless its key is taken; return for each the id that has it, and what became of it."""
    return await session.run_sync(operations.enqueue_many_unique, new)


async def enqueue_payloads(
    session: AsyncSession,
    handler: Handler[InT, Any, Any],
    payloads: Iterable[InT],
    /,
    *,
    deduplicate_by: Callable[[InT], str] | None = None,
    **options: Any,
) -> int:
    """Enqueue one job a payload by COPY, in the caller's transaction; return how many were made."""
    return await session.run_sync(operations.enqueue_payloads, handler, payloads, deduplicate_by=deduplicate_by, **options)
