"""Progress that running attempts have reported, read from the rows of their workers. `leases.heartbeat` writes it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue.statements._parts import Tables, statement, status
from sa_jobqueue.types import JobStatus, Progress


@statement
def of_job(t: Tables) -> sa.Select[Any]:
    """Return the progress of one job, as JSON.

    Parameters: `job_id`. Shape: `(progress, heartbeat_at)`, null without a report; no row when there is no such job.
    The fence: a worker that lost a lease may go on reporting, but it is neither the job's worker nor at its attempt.
    Locks: none. Index: the primary keys.
    """
    holds = sa.and_(t.worker.c.id == t.job.c.leased_by, t.job.c.status == status(JobStatus.RUNNING))
    entry: sa.ColumnElement[Any] = t.worker.c.progress.op("->")(sa.cast(t.job.c.id, sa.Text))
    attempt = entry.op("->>")(sa.literal_column("'attempt'"))
    reported = sa.case((attempt == sa.cast(t.job.c.attempt, sa.Text), entry)).cast(JSONB)
    return (
        sa.select(reported.label("progress"), t.worker.c.heartbeat_at)
        .select_from(t.job.outerjoin(t.worker, holds))
        .where(t.job.c.id == t.id("job_id"))
    )


def read(row: Any) -> Progress | None:
    """Return the progress that a row `(progress, heartbeat_at)` shows."""
    progress = row.progress
    if progress is None:
        return None
    return Progress(
        progress["done"], progress["total"], progress["message"], attempt=int(progress["attempt"]), as_of=row.heartbeat_at
    )
