"""Reading and recording the steps of a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.errors import InvalidOptionError, LostAttemptError
from sa_jobqueue.models import Job, JobClass, StepMixin
from sa_jobqueue.models.checks import check_id
from sa_jobqueue.operations.completions import check_session
from sa_jobqueue.operations.pages import check_limit
from sa_jobqueue.statements import steps
from sa_jobqueue.types import JobId, StepKind


def list_steps(session: Session, job_id: JobId, *, limit: int = 1000, model: JobClass = Job) -> list[StepMixin[Any]]:
    """Return the steps of a job in the order of completion; a wait that goes on is the last.

    `job_id`: id of the job. `limit`: 1 to 1,000; the last ones, if there are more.
    Raises: InvalidOptionError.
    """
    check_limit(limit)
    check_id(model, "job_id", job_id)
    return list(session.scalars(steps.latest(model), {"job_id": job_id, "limit": limit}))[::-1]


def check_step(session: Session, model: JobClass, job_ids: Sequence[Any], step: str) -> None:
    """Check that a job has a step of this name. Raises: InvalidOptionError if none of them has."""
    names = list(session.scalars(steps.names(model), {"job_ids": list(job_ids)}))
    if step not in names:
        have = "they have " + ", ".join(map(repr, names[:20])) if names else "they have no steps"
        raise InvalidOptionError("from_step", f"no step of these jobs is named {step!r}; {have}. No job was changed")


def restart(session: Session, model: JobClass, job_ids: Sequence[Any], step: str | None) -> None:
    """Delete a step of jobs, and those that completed after it, so that they run again.

    Without a `step`, the last one if it is a wait that timed out. Obliges: the jobs are locked, and not running.
    """
    if step is None:
        session.execute(steps.delete_timed_out(model), {"job_ids": list(job_ids)})
    else:
        session.execute(steps.delete_from(model), {"job_ids": list(job_ids), "step_name": step})


def record_step(
    session: Session | Connection,
    model: JobClass,
    job: ClaimedJob,
    worker_id: str,
    *,
    kind: StepKind,
    place: tuple[str, str],
    output: str | None = None,
    took: timedelta = timedelta(0),
    session_name: str | None = None,
    **wait: Any,
) -> datetime:
    """Record a step; return when it completed, when a sleep ends, or when a wait times out.

    `job`, `worker_id`: the attempt, which must hold the job. `kind`: the kind of step. `place`: its name and key. `output`:
    JSON text; None for a wait that goes on or timed out. `took`: its duration, of a sleep too; the timeout of a wait that
    begins. `session_name`: of the transaction in which the step's effects were written; None if there are none. `wait`: of a
    wait, the name of the `event`, and `is_over`.
    Locks: the job, until the transaction ends.
    Raises: LostAttemptError if the worker no longer holds the attempt; HandlerCommitError if the handler ended its
    transaction. Obliges: roll back the transaction then.
    """
    given: dict[str, Any] = {"job_id": job.id, "job_attempt": job.attempt, "worker_id": worker_id, "took": took}
    given |= {"step_name": place[0], "step_key": place[1], "step_output": output}
    row = session.execute(steps.record(model, kind), given | wait).first()
    if row is None:
        raise LostAttemptError(job.id, job.attempt)
    check_session(row.session_name, session_name)
    until: datetime = row.until
    return until
