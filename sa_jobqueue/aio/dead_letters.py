"""Dead letters on an `AsyncSession`."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import DeadLetterMixin, Job, JobMixin
from sa_jobqueue.operations import (
    DeadLetterFilter,
    DeadLetterGroup,
)
from sa_jobqueue.types import JobId

InT = TypeVar("InT")
JobT = TypeVar("JobT", bound=JobMixin[Any])


async def list_dead_letters(
    session: AsyncSession,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    model: type[JobMixin[Any]] = Job,
) -> list[DeadLetterMixin[Any]]:
    """Return one page of dead letters, in the order of their ids; otherwise as `list_jobs`."""
    return await session.run_sync(
        operations.list_dead_letters, where=where, after=after, limit=limit, newest_first=newest_first, model=model
    )


async def group_dead_letters(
    session: AsyncSession, *, where: DeadLetterFilter = DeadLetterFilter(), model: type[JobMixin[Any]] = Job
) -> list[DeadLetterGroup]:
    """Count dead letters by type, reason and error, most frequent first. Locks: none; reads every matching dead letter."""
    return await session.run_sync(operations.group_dead_letters, where=where, model=model)


async def redrive_dead_letters(
    session: AsyncSession,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    by: str = "",
    limit: int = 1000,
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> list[Any]:
    """Put dead jobs back to pending with as many fresh attempts as they once had; return their ids."""
    return await session.run_sync(
        operations.redrive_dead_letters, where=where, by=by, limit=limit, dry_run=dry_run, model=model
    )


async def dismiss_dead_letters(
    session: AsyncSession,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    by: str,
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> list[Any]:
    """Resolve dead letters as dismissed; return their ids. Their jobs stay dead."""
    return await session.run_sync(operations.dismiss_dead_letters, where=where, by=by, dry_run=dry_run, model=model)
