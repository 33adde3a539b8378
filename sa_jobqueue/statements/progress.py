"""Progress that running attempts have reported, read from the rows of their workers. `leases.heartbeat` writes it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import id_value, once_a_model, status, table
from sa_jobqueue.types import JobStatus, Progress


@once_a_model
def of_job(model: JobClass) -> sa.Select[Any]:
    """Return the progress of one job, as JSON.

    Parameters: `job_id`. Shape: `(progress, heartbeat_at)`, null without a report; no row when there is no such job.
    The fence: a worker that lost a lease may go on reporting, but it is neither the job's worker nor at its attempt.
    Locks: none. Index: the primary keys.
    """
    job, worker = table(model), table(model.Worker)
    holds = sa.and_(worker.c.id == job.c.leased_by, job.c.status == status(JobStatus.RUNNING))
    entry: sa.ColumnElement[Any] = worker.c.progress.op("->")(sa.cast(job.c.id, sa.Text))
    attempt = entry.op("->>")(sa.literal_column("'attempt'"))
    reported = sa.case((attempt == sa.cast(job.c.attempt, sa.Text), entry)).cast(JSONB)
    return (
        sa.select(reported.label("progress"), worker.c.heartbeat_at)
        .select_from(job.outerjoin(worker, holds))
        .where(job.c.id == id_value(model, "job_id"))
    )


def read(row: Any) -> Progress | None:
    """Return the progress that a row `(progress, heartbeat_at)` shows."""
    progress = row.progress
    if progress is None:
        return None
    return Progress(
        progress["done"], progress["total"], progress["message"], attempt=int(progress["attempt"]), as_of=row.heartbeat_at
    )
