"""Chains and what waits for them, on an `AsyncSession`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import BlockerMixin, ChainMixin, Job, JobMixin
from sa_jobqueue.operations import (
    ChainFilter,
    Page,
    Progress,
)
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, JobT
from sa_jobqueue.types import JobId


async def get_chain(session: AsyncSession, chain_id: JobId, *, model: type[JobMixin[Any]] = Job) -> ChainMixin[Any]:
    """Return a chain as it is now, fresh from the database."""
    return await session.run_sync(operations.get_chain, chain_id, model=model)


async def get_progress(session: AsyncSession, job_id: JobId, *, model: type[JobMixin[Any]] = Job) -> Progress:
    """Count the chains that a job waits for, or did, by how they stand: of a set, for the job that waits for all of it."""
    return await session.run_sync(operations.get_progress, job_id, model=model)


@overload
async def list_chains(
    session: AsyncSession,
    *,
    where: ChainFilter = ChainFilter(),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[ChainMixin[Any]]: ...
@overload
async def list_chains(
    session: AsyncSession,
    *,
    where: ChainFilter = ChainFilter(),
    columns: Sequence[str],
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
async def list_chains(
    session: AsyncSession,
    *,
    where: ChainFilter = ChainFilter(),
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of chains, in the order of their ids; otherwise as `list_jobs`."""
    return await session.run_sync(
        operations.list_chains,
        where=where,
        columns=columns,
        after=after,
        limit=limit,
        newest_first=newest_first,
        scan_limit=scan_limit,
        model=model,
    )


@overload
async def list_chain_jobs(
    session: AsyncSession,
    chain_id: JobId,
    *,
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobT] = DEFAULT_MODEL,
) -> Page[JobT]: ...
@overload
async def list_chain_jobs(
    session: AsyncSession,
    chain_id: JobId,
    *,
    columns: Sequence[str],
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
async def list_chain_jobs(
    session: AsyncSession,
    chain_id: JobId,
    *,
    columns: Sequence[str] = (),
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of a chain's jobs, in their order in it, the root first."""
    return await session.run_sync(
        operations.list_chain_jobs,
        chain_id,
        columns=columns,
        after=after,
        limit=limit,
        newest_first=newest_first,
        model=model,
    )


async def list_blockers(
    session: AsyncSession, job_id: JobId, *, after: int | None = None, limit: int = 50, model: type[JobMixin[Any]] = Job
) -> Page[BlockerMixin[Any]]:
    """Return one page of what a job waits for, or waited for, in the order of its blockers."""
    return await session.run_sync(operations.list_blockers, job_id, after=after, limit=limit, model=model)


@overload
async def list_blocked_jobs(
    session: AsyncSession,
    chain_id: JobId,
    *,
    open_only: bool = False,
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobT] = DEFAULT_MODEL,
) -> Page[JobT]: ...
@overload
async def list_blocked_jobs(
    session: AsyncSession,
    chain_id: JobId,
    *,
    open_only: bool = False,
    columns: Sequence[str],
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
async def list_blocked_jobs(
    session: AsyncSession,
    chain_id: JobId,
    *,
    open_only: bool = False,
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = 10_000,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of the jobs that wait for a chain, or waited for it, in the order of their ids."""
    return await session.run_sync(
        operations.list_blocked_jobs,
        chain_id,
        open_only=open_only,
        columns=columns,
        after=after,
        limit=limit,
        newest_first=newest_first,
        scan_limit=scan_limit,
        model=model,
    )


async def cancel_chains(session: AsyncSession, chain_ids: Sequence[JobId], *, model: type[JobMixin[Any]] = Job) -> list[Any]:
    """Cancel chains that have not ended, each by its current job; return the ids of those it cancelled, sorted."""
    return await session.run_sync(operations.cancel_chains, chain_ids, model=model)


async def delete_chains(
    session: AsyncSession,
    chain_ids: Sequence[JobId],
    *,
    cascade: bool = False,
    by: str = "",
    model: type[JobMixin[Any]] = Job,
) -> list[Any]:
    """Delete chains whatever they are doing, each with all its jobs; return the ids of the chains deleted, sorted."""
    return await session.run_sync(operations.delete_chains, chain_ids, cascade=cascade, by=by, model=model)


async def lock_chain(session: AsyncSession, chain_id: JobId, *, model: type[JobT] = DEFAULT_MODEL) -> JobT:
    """Return a chain's last job, and lock the chain: no other transaction can end or continue it meanwhile."""
    return await session.run_sync(operations.lock_chain, chain_id, model=model)
