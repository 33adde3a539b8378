"""Schedules on an `AsyncSession`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import operations
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations import (
    ScheduleExplanation,
    ScheduleStatus,
    SyncedSchedules,
)
from sa_jobqueue.operations.firing import BATCH
from sa_jobqueue.operations.pages import MAX_PAGE
from sa_jobqueue.registry.schedules import Schedule, ScheduleRun

InT = TypeVar("InT")
JobT = TypeVar("JobT", bound=JobMixin[Any])


async def sync_schedules(
    session: AsyncSession, new: Iterable[Schedule], *, model: type[JobMixin[Any]] = Job
) -> SyncedSchedules:
    """Synchronise the rows of schedules with the declarations in code; return the changes."""
    return await session.run_sync(operations.sync_schedules, new, model=model)


async def upsert_schedule(session: AsyncSession, schedule: Schedule, *, model: type[JobMixin[Any]] = Job) -> bool:
    """Write a schedule into the table, new or in the place of what it was; return whether anything was written."""
    return await session.run_sync(operations.upsert_schedule, schedule, model=model)


async def list_schedules(
    session: AsyncSession, *, names: Sequence[str] = (), limit: int = MAX_PAGE, model: type[JobMixin[Any]] = Job
) -> list[ScheduleStatus]:
    """Return schedules by name, at most `limit`, 1 to 1,000; of `names`, those that are there."""
    return await session.run_sync(operations.list_schedules, names=names, limit=limit, model=model)


async def pause_schedules(
    session: AsyncSession, names: Sequence[str], *, by: str | None = None, model: type[JobMixin[Any]] = Job
) -> None:
    """Pause schedules until they are resumed. `by`: who paused them, for display."""
    return await session.run_sync(operations.pause_schedules, names, by=by, model=model)


async def resume_schedules(session: AsyncSession, names: Sequence[str], *, model: type[JobMixin[Any]] = Job) -> None:
    """Let paused schedules fire again, first at their next time from now: what came meanwhile was not missed."""
    return await session.run_sync(operations.resume_schedules, names, model=model)


async def explain_schedule(
    session: AsyncSession,
    name: str,
    *,
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    model: type[JobMixin[Any]] = Job,
) -> ScheduleExplanation:
    """Say why a schedule does not fire, or when it does: one cause, in words, with the evidence."""
    return await session.run_sync(operations.explain_schedule, name, heartbeat_timeout=heartbeat_timeout, model=model)


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
    session: AsyncSession,
    *,
    limit: int = BATCH,
    at: datetime | None = None,
    names: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
    model: type[JobMixin[Any]] = Job,
) -> list[ScheduleRun]:
    """Fire the schedules that are due: enqueue their jobs, and move them on; return what became of each."""
    return await session.run_sync(operations.fire_schedules, limit=limit, at=at, names=names, excluded=excluded, model=model)
