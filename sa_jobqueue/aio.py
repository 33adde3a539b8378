"""The operations for an `AsyncSession`, one line each: the same function runs on the session's synchronous face."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.aio_control import (
    list_job_types as list_job_types,
    list_queues as list_queues,
    pause_job_types as pause_job_types,
    pause_queues as pause_queues,
    put_job_type as put_job_type,
    put_queue as put_queue,
    resize_workers as resize_workers,
    resume_job_types as resume_job_types,
    resume_queues as resume_queues,
    sync_queues as sync_queues,
)
from sa_jobqueue.handlers import Handler
from sa_jobqueue.models import AttemptMixin, ChainMixin, DeadLetterMixin, Job, JobMixin
from sa_jobqueue.operations import (
    ChainFilter,
    DeadLetterFilter,
    DeadLetterGroup,
    Deduplicate,
    Explanation,
    JobFilter,
    Page,
    Pruned,
    PrunePlace,
    ScheduleStatus,
    SyncedSchedules,
    WorkerFilter,
    WorkerStatus,
)
from sa_jobqueue.operations.firing import BATCH
from sa_jobqueue.operations.pages import MAX_PAGE
from sa_jobqueue.retention import RetentionRules
from sa_jobqueue.schedules import Fired, Schedule
from sa_jobqueue.types import JobId

InT = TypeVar("InT")
JobT = TypeVar("JobT", bound=JobMixin[Any])

after_commit = operations.after_commit
"""The same function: it does no I/O, so it has no colour."""


async def enqueue(session: AsyncSession, job: JobT, *, deduplicate: Deduplicate) -> tuple[JobT, bool]:
    """Enqueue a job unless its key is taken; return the job that has it, and whether it was made now."""
    return await session.run_sync(operations.enqueue, job, deduplicate=deduplicate)


async def enqueue_unique(session: AsyncSession, new: Iterable[tuple[JobT, Deduplicate]]) -> list[tuple[JobT, bool]]:
    """Enqueue many jobs, each unless its key is taken; return for each what `enqueue` returns, in the order given."""
    return await session.run_sync(operations.enqueue_unique, new)


async def enqueue_many(session: AsyncSession, new: Iterable[JobT], *, model: type[JobT] | None = None) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the order given."""
    return await session.run_sync(operations.enqueue_many, new, model=model)


async def enqueue_payloads(
    session: AsyncSession, handler: Handler[InT, Any, Any], payloads: Iterable[InT], **options: Any
) -> int:
    """Enqueue one job a payload by COPY, in the caller's transaction; return how many."""
    return await session.run_sync(operations.enqueue_payloads, handler, payloads, **options)


async def get_job(session: AsyncSession, job_id: JobId, *, model: type[JobMixin[Any]] = Job) -> JobMixin[Any]:
    """Return a job as it is now, fresh from the database."""
    return await session.run_sync(operations.get_job, job_id, model=model)


async def list_jobs(
    session: AsyncSession,
    *,
    where: JobFilter = JobFilter(),
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
    """Return the attempts of a job that did not succeed, oldest first. Locks: none."""
    return await session.run_sync(operations.list_attempts, job_id, model=model)


async def explain_job(
    session: AsyncSession,
    job_id: JobId,
    *,
    time_to_live: timedelta = timedelta(seconds=15),
    model: type[JobMixin[Any]] = Job,
) -> Explanation:
    """Say why a job is not running, or how it is: one cause, in words, with the evidence; for blocked ones to the root."""
    return await session.run_sync(operations.explain_job, job_id, time_to_live=time_to_live, model=model)


async def get_chain(session: AsyncSession, chain_id: JobId, *, model: type[JobMixin[Any]] = Job) -> ChainMixin[Any]:
    """Return a chain as it is now, fresh from the database."""
    return await session.run_sync(operations.get_chain, chain_id, model=model)


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
) -> Page[Any]:
    """Return one page of what a job waits for, or waited for, in the order of its blockers."""
    return await session.run_sync(operations.list_blockers, job_id, after=after, limit=limit, model=model)


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


async def cancel_jobs(session: AsyncSession, ids: Sequence[JobId], *, model: type[JobMixin[Any]] = Job) -> list[Any]:
    """Cancel jobs that have not ended; return the ids of those it cancelled."""
    return await session.run_sync(operations.cancel_jobs, ids, model=model)


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


async def complete_job(
    session: AsyncSession, job_id: JobId, result: Any = None, *, model: type[JobMixin[Any]] = Job
) -> JobMixin[Any]:
    """Complete a job without a worker; return it, completed."""
    return await session.run_sync(operations.complete_job, job_id, result, model=model)


async def lock_chain(session: AsyncSession, chain_id: JobId, *, model: type[JobMixin[Any]] = Job) -> JobMixin[Any]:
    """Return a chain's current job, its last, and hold the chain: nobody else ends it or lets it go on meanwhile."""
    return await session.run_sync(operations.lock_chain, chain_id, model=model)


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


async def trigger_jobs(session: AsyncSession, ids: Sequence[JobId], *, model: type[JobMixin[Any]] = Job) -> None:
    """Make pending jobs due now, all of them or none: a scheduled one early, a failed one before its backoff is over."""
    await session.run_sync(operations.trigger_jobs, ids, model=model)


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
    """Count dead letters by type, reason and error, most frequent first. Locks: none; reads every letter meant."""
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


async def prune(
    session: AsyncSession,
    rules: RetentionRules,
    *,
    place: PrunePlace | None = None,
    scan: int = 500,
    queue_rows: bool = True,
    by: str = "retention",
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> Pruned:
    """Delete chains whose time is up among the next `scan` jobs, each whole; return what went and where to go on."""
    return await session.run_sync(
        operations.prune, rules, place=place, scan=scan, queue_rows=queue_rows, by=by, dry_run=dry_run, model=model
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


async def sync_schedules(
    session: AsyncSession, new: Iterable[Schedule], *, model: type[JobMixin[Any]] = Job
) -> SyncedSchedules:
    """Make the rows of schedules say what code declares; return what was changed."""
    return await session.run_sync(operations.sync_schedules, new, model=model)


async def put_schedule(session: AsyncSession, schedule: Schedule, *, model: type[JobMixin[Any]] = Job) -> bool:
    """Write a schedule into the table, new or in the place of what it was; return whether anything was written."""
    return await session.run_sync(operations.put_schedule, schedule, model=model)


async def list_schedules(
    session: AsyncSession, *, names: Sequence[str] = (), limit: int = MAX_PAGE, model: type[JobMixin[Any]] = Job
) -> list[ScheduleStatus]:
    """Return schedules by name, at most `limit`, 1 to 1,000; of `names`, those that are there."""
    return await session.run_sync(operations.list_schedules, names=names, limit=limit, model=model)


async def pause_schedules(
    session: AsyncSession, names: Sequence[str], *, by: str | None = None, model: type[JobMixin[Any]] = Job
) -> None:
    """Let schedules fire no more until they are resumed. `by`: who says so, for those who look."""
    return await session.run_sync(operations.pause_schedules, names, by=by, model=model)


async def resume_schedules(session: AsyncSession, names: Sequence[str], *, model: type[JobMixin[Any]] = Job) -> None:
    """Let paused schedules fire again, first at their next time from now: what came meanwhile was not missed."""
    return await session.run_sync(operations.resume_schedules, names, model=model)


async def run_schedule(
    session: AsyncSession,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    model: type[JobMixin[Any]] = Job,
) -> list[Any]:
    """Enqueue a schedule's job out of its turn; return the ids of the jobs made. When it fires next stays as it was."""
    return await session.run_sync(operations.run_schedule, name, since=since, until=until, model=model)


async def delete_schedules(session: AsyncSession, names: Sequence[str], *, model: type[JobMixin[Any]] = Job) -> None:
    """Delete schedules; the jobs they made stay. One that code declares comes back with the next worker that starts."""
    return await session.run_sync(operations.delete_schedules, names, model=model)


async def fire_schedules(
    session: AsyncSession, *, limit: int = BATCH, at: datetime | None = None, model: type[JobMixin[Any]] = Job
) -> list[Fired]:
    """Fire the schedules that are due: enqueue their jobs, and move them on; return what became of each."""
    return await session.run_sync(operations.fire_schedules, limit=limit, at=at, model=model)
