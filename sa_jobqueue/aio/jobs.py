"""Jobs on an `AsyncSession`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, overload

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import AttemptMixin, Job, JobMixin
from sa_jobqueue.operations import (
    Explanation,
    JobFilter,
    Page,
)
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, Handler, JobT
from sa_jobqueue.types import JobId


async def get_job(session: AsyncSession, job_id: JobId, *, model: type[JobT] = DEFAULT_MODEL) -> JobT:
    """Return a job as it is now, fresh from the database."""
    return await session.run_sync(operations.get_job, job_id, model=model)


@overload
async def list_jobs(
    session: AsyncSession,
    *,
    where: JobFilter = JobFilter(),
    matching: ColumnElement[bool] | None = None,
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobT] = DEFAULT_MODEL,
) -> Page[JobT]: ...
@overload
async def list_jobs(
    session: AsyncSession,
    *,
    where: JobFilter = JobFilter(),
    matching: ColumnElement[bool] | None = None,
    columns: Sequence[str],
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
async def list_jobs(
    session: AsyncSession,
    *,
    where: JobFilter = JobFilter(),
    matching: ColumnElement[bool] | None = None,
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of jobs, in the order of their ids."""
    return await session.run_sync(
        operations.list_jobs,
        where=where,
        matching=matching,
        columns=columns,
        after=after,
        limit=limit,
        newest_first=newest_first,
        scan_limit=scan_limit,
        model=model,
    )


async def list_attempts(
    session: AsyncSession, job_id: JobId, *, model: type[JobMixin[Any]] = Job
) -> list[AttemptMixin[Any]]:
    """Return the attempts of a job that did not succeed, oldest first. Locks: none. Raises: InvalidJobError as `get_job`."""
    return await session.run_sync(operations.list_attempts, job_id, model=model)


async def explain_job(
    session: AsyncSession,
    job_id: JobId,
    *,
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    model: type[JobMixin[Any]] = Job,
) -> Explanation:
    """Say why a job is not running, or how it is: one cause, in words, with the evidence; for blocked ones to the root."""
    return await session.run_sync(operations.explain_job, job_id, heartbeat_timeout=heartbeat_timeout, model=model)


async def cancel_jobs(session: AsyncSession, ids: Sequence[JobId], *, model: type[JobMixin[Any]] = Job) -> list[Any]:
    """Cancel jobs that have not ended; return the ids of those it cancelled."""
    return await session.run_sync(operations.cancel_jobs, ids, model=model)


async def complete_job(
    session: AsyncSession,
    job_id: JobId,
    result: Any = None,
    *,
    handler: Handler[Any, Any, JobT] | None = None,
    model: type[JobT] = DEFAULT_MODEL,
) -> JobT:
    """Complete a job without a worker; return it, completed."""
    return await session.run_sync(operations.complete_job, job_id, result, handler=handler, model=model)


async def reschedule_jobs(
    session: AsyncSession,
    ids: Sequence[JobId],
    *,
    delay: timedelta | None = None,
    at: datetime | None = None,
    model: type[JobMixin[Any]] = Job,
) -> None:
    """Move pending or blocked jobs to another time, all of them or none."""
    await session.run_sync(operations.reschedule_jobs, ids, delay=delay, at=at, model=model)


async def set_priority(
    session: AsyncSession,
    priority: int,
    *,
    where: JobFilter = JobFilter(),
    matching: ColumnElement[bool] | None = None,
    after: JobId | None = None,
    limit: int = 1_000,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Give waiting jobs that fit a priority, a page a call; return the ids of those that had another."""
    return await session.run_sync(
        operations.set_priority,
        priority,
        where=where,
        matching=matching,
        after=after,
        limit=limit,
        scan_limit=scan_limit,
        model=model,
    )


async def trigger_jobs(session: AsyncSession, ids: Sequence[JobId], *, model: type[JobMixin[Any]] = Job) -> None:
    """Make pending jobs due now, all of them or none: a scheduled one early, a failed one before its backoff is over."""
    await session.run_sync(operations.trigger_jobs, ids, model=model)
