"""Workers, tables and old rows, on an `AsyncSession`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations import (
    PruneCursor,
    Pruned,
    PrunedDeadLetters,
    WorkerFilter,
    WorkerStatus,
)
from sa_jobqueue.policies.retention import RetentionRules
from sa_jobqueue.types import JobId

InT = TypeVar("InT")
JobT = TypeVar("JobT", bound=JobMixin[Any])


async def prune(
    session: AsyncSession,
    rules: RetentionRules,
    *,
    cursor: PruneCursor | None = None,
    scan: int = 500,
    queue_rows: bool = True,
    by: str = "retention",
    dry_run: bool = False,
    excluded: Collection[JobId] = (),
    model: type[JobMixin[Any]] = Job,
) -> Pruned:
    """Delete chains whose time is up among the next `scan` jobs, each whole; return what went and where to go on."""
    return await session.run_sync(
        operations.prune,
        rules,
        cursor=cursor,
        scan=scan,
        queue_rows=queue_rows,
        by=by,
        dry_run=dry_run,
        excluded=excluded,
        model=model,
    )


async def prune_dead_letters(
    session: AsyncSession,
    rules: RetentionRules,
    *,
    after: JobId | None = None,
    scan: int = 500,
    dry_run: bool = False,
    excluded: Collection[JobId] = (),
    model: type[JobMixin[Any]] = Job,
) -> PrunedDeadLetters:
    """Delete, of the next `scan` dead letters, those resolved longer ago than `rules` keep them; return where to go on."""
    return await session.run_sync(
        operations.prune_dead_letters, rules, after=after, scan=scan, dry_run=dry_run, excluded=excluded, model=model
    )


async def list_workers(
    session: AsyncSession, *, where: WorkerFilter = WorkerFilter(), limit: int = 1000, model: type[JobMixin[Any]] = Job
) -> list[WorkerStatus]:
    """Return workers by name and id, at most `limit`, 1 to 1,000; those killed a few minutes ago are among them."""
    return await session.run_sync(operations.list_workers, where=where, limit=limit, model=model)


async def drain_workers(session: AsyncSession, *, where: WorkerFilter, model: type[JobMixin[Any]] = Job) -> list[str]:
    """Ask workers to claim no more, finish what they run and stop, as SIGTERM does; return their ids, sorted."""
    return await session.run_sync(operations.drain_workers, where=where, model=model)


async def check_schema(session: AsyncSession, *, model: type[JobMixin[Any]] = Job) -> int:
    """Check that the server and the queue's tables are ones this library works on; return the version of the tables."""
    return await session.run_sync(operations.check_schema, model=model)
