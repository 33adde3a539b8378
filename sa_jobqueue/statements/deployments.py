"""Open jobs before a deployment: numbers by type, queue and version, and samples of their payloads and steps."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, statement, status
from sa_jobqueue.types import MIN_PRIORITY, JobStatus, StepKind

_LIMIT: Final = sa.bindparam("limit", type_=sa.Integer)
_TYPE_NAME: Final = sa.bindparam("type_name", type_=sa.Text)


@statement
def open_jobs(t: Tables) -> sa.Select[Any]:
    """Count the open jobs. Shape: `(type_name, queue, input_version, jobs)`, in this order. Locks: none.

    Index: `ix_job_claim`, `ix_job_running` and `ix_job_blocked_or_dead`, all entries.
    """
    job = _open(t)
    columns = (job.c.type_name, job.c.queue, job.c.input_version)
    return sa.select(*columns, sa.func.count().label("jobs")).group_by(*columns).order_by(*columns)


@statement
def payloads(t: Tables) -> sa.Select[Any]:
    """Return payloads of open jobs, whichever come first. Parameters: `type_name`, `input_version`, `limit`.

    Shape: `(id, input)`. Locks: none. Index: as `open_jobs`.
    """
    job, version = _open(t), sa.bindparam("input_version", type_=sa.Integer)
    return (
        sa.select(job.c.id, job.c.input).where(job.c.type_name == _TYPE_NAME, job.c.input_version == version).limit(_LIMIT)
    )


@statement
def step_records(t: Tables) -> sa.Select[Any]:
    """Return results that steps of open jobs have recorded, whichever come first. Parameters: `type_name`, `limit`.

    Shape: `(job_id, name, kind, output, child_type)`, the last of the job that the step ran. Locks: none.
    Index: as `open_jobs`; `pk_job_step`, `pk_job`.
    """
    job, step, child = _open(t), t.step, t.job.alias("child")
    kinds: list[Any] = [
        sa.literal_column(f"'{kind}'") for kind in (StepKind.STEP, StepKind.WAIT, StepKind.RUN, StepKind.CURSOR)
    ]
    return (
        sa.select(step.c.job_id, step.c.name, step.c.kind, step.c.output, child.c.type_name.label("child_type"))
        .join_from(job, step, step.c.job_id == job.c.id)
        .join(child, child.c.id == step.c.child_chain_id, isouter=True)
        .where(job.c.type_name == _TYPE_NAME, step.c.kind.in_(kinds), step.c.output.is_not(None))
        .limit(_LIMIT)
    )


def _open(t: Tables) -> sa.Subquery:
    """Return the jobs that have not ended, of each status by its own index."""
    job = t.job
    columns = [job.c[name] for name in ("id", "type_name", "queue", "input_version", "input")]
    unended = [status(JobStatus.BLOCKED), status(JobStatus.DEAD)]  # the condition of the index
    return sa.union_all(
        sa.select(*columns).where(
            job.c.status == status(JobStatus.PENDING), job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'")
        ),
        sa.select(*columns).where(job.c.status == status(JobStatus.RUNNING)),
        sa.select(*columns).where(job.c.status.in_(unended), job.c.status == status(JobStatus.BLOCKED)),
    ).subquery("open_job")
