"""Settings of queues, job types and workers, for `AsyncSession`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations import QueueStatus, SyncedQueues, TypeStatus, WorkerFilter
from sa_jobqueue.operations.pages import MAX_PAGE
from sa_jobqueue.registry.settings import QueueSettings, TypeSettings


async def list_queues(
    session: AsyncSession, *, names: Sequence[str] = (), limit: int = MAX_PAGE, model: type[JobMixin[Any]] = Job
) -> list[QueueStatus]:
    """Return queues by name that have a row or a worker, at most `limit`, 1 to 1,000; of `names`, those that do."""
    return await session.run_sync(operations.list_queues, names=names, limit=limit, model=model)


async def list_job_types(
    session: AsyncSession, *, names: Sequence[str] = (), limit: int = MAX_PAGE, model: type[JobMixin[Any]] = Job
) -> list[TypeStatus]:
    """Return job types by name that have a row or a worker, at most `limit`, 1 to 1,000; of `names`, those that do."""
    return await session.run_sync(operations.list_job_types, names=names, limit=limit, model=model)


async def get_queue(session: AsyncSession, name: str, *, model: type[JobMixin[Any]] = Job) -> QueueStatus:
    """Return a queue's settings and lock its row until the transaction ends."""
    return await session.run_sync(operations.get_queue, name, model=model)


async def get_job_type(session: AsyncSession, name: str, *, model: type[JobMixin[Any]] = Job) -> TypeStatus:
    """Return a job type's settings and lock its row until the transaction ends."""
    return await session.run_sync(operations.get_job_type, name, model=model)


async def upsert_queue(session: AsyncSession, settings: QueueSettings, *, model: type[JobMixin[Any]] = Job) -> bool:
    """Write all that a queue's row says, but whether it is paused; return whether anything was written."""
    return await session.run_sync(operations.upsert_queue, settings, model=model)


async def upsert_job_type(session: AsyncSession, settings: TypeSettings, *, model: type[JobMixin[Any]] = Job) -> bool:
    """Write all that a job type's row says, but whether it is paused; return whether anything was written."""
    return await session.run_sync(operations.upsert_job_type, settings, model=model)


async def pause_queues(
    session: AsyncSession, names: Sequence[str], *, by: str | None = None, model: type[JobMixin[Any]] = Job
) -> list[str]:
    """Have no job of these queues started until they are resumed; return those that were not paused, sorted."""
    return await session.run_sync(operations.pause_queues, names, by=by, model=model)


async def resume_queues(session: AsyncSession, names: Sequence[str], *, model: type[JobMixin[Any]] = Job) -> list[str]:
    """Have the jobs of paused queues started again, whatever came meanwhile; return those that were paused, sorted."""
    return await session.run_sync(operations.resume_queues, names, model=model)


async def pause_job_types(
    session: AsyncSession, names: Sequence[str], *, by: str | None = None, model: type[JobMixin[Any]] = Job
) -> list[str]:
    """Have no job of these types started until they are resumed; return those that were not paused, sorted."""
    return await session.run_sync(operations.pause_job_types, names, by=by, model=model)


async def resume_job_types(session: AsyncSession, names: Sequence[str], *, model: type[JobMixin[Any]] = Job) -> list[str]:
    """Have the jobs of paused types started again, whatever came meanwhile; return those that were paused, sorted."""
    return await session.run_sync(operations.resume_job_types, names, model=model)


async def sync_queues(
    session: AsyncSession, new: Iterable[QueueSettings], *, model: type[JobMixin[Any]] = Job
) -> SyncedQueues:
    """Synchronise the rows of queues with the declarations in code; return the changes. For a dry run, roll back."""
    return await session.run_sync(operations.sync_queues, new, model=model)


async def resize_workers(
    session: AsyncSession, concurrency: int | None, *, where: WorkerFilter, model: type[JobMixin[Any]] = Job
) -> list[str]:
    """Ask workers to run so many jobs at once; None: as many as each was started with. Return their ids, sorted."""
    return await session.run_sync(operations.resize_workers, concurrency, where=where, model=model)
