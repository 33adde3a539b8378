"""Answers whether attempts are still this worker's, by the committed rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobClass
from sa_jobqueue.statements import jobs as job_statements
from sa_jobqueue.types import CancelReason, JobId, JobStatus

COLUMNS: Final = ("id", "status", "attempt", "leased_by", "completed_by")


class Ownership:
    """Reads the jobs of attempts, and compares them with what this worker claimed."""

    def __init__(self, engine: AsyncEngine, model: JobClass, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._holders = compiled(job_statements.named, model, columns=COLUMNS)

    async def owned_ids(self, jobs: Iterable[ClaimedJob], connection: AsyncConnection | None = None) -> set[JobId]:
        """Return the ids of the jobs whose attempts this worker still holds."""
        jobs = list(jobs)
        rows = await self._rows(jobs, connection)
        return {job.id for job in jobs if self._reason(job, rows.get(job.id)) is None}

    async def lost(self, jobs: Iterable[ClaimedJob]) -> dict[JobId, CancelReason]:
        """Return why attempts are no longer this worker's, by job. One that it has completed itself is not lost."""
        jobs = list(jobs)
        rows = await self._rows(jobs, None)
        reasons = {job.id: self._reason(job, rows.get(job.id)) for job in jobs}
        for job in jobs:
            if job.id in rows:
                _, _, attempt, _, completed_by = rows[job.id]
                if (attempt, completed_by) == (job.attempt, self._worker_id):
                    reasons[job.id] = None
        return {job_id: reason for job_id, reason in reasons.items() if reason is not None}

    async def _rows(self, jobs: list[ClaimedJob], connection: AsyncConnection | None) -> dict[JobId, Any]:
        if connection is None:
            async with self._engine.connect() as opened:
                return await self._rows(jobs, opened)
        return {row[0]: row for row in await self._holders.execute(connection, {"ids": [job.id for job in jobs]})}

    def _reason(self, job: ClaimedJob, row: Any) -> CancelReason | None:
        if row is None:
            return CancelReason.DELETED
        _, status, attempt, leased_by, _ = row
        if status == JobStatus.CANCELLED:
            return CancelReason.CANCELLED
        if status == JobStatus.COMPLETED:
            return CancelReason.COMPLETED
        is_ours = status == JobStatus.RUNNING and (attempt, leased_by) == (job.attempt, self._worker_id)
        return None if is_ours else CancelReason.LEASE_LOST
