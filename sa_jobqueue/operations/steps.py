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
from sa_jobqueue.operations.completions import check_session, claimed_table_visible, refusals
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
    connection: Session | Connection,
    model: JobClass,
    job: ClaimedJob,
    worker_id: str,
    *,
    kind: StepKind,
    place: tuple[str, str],
    output: str | None = None,
    took: timedelta = timedelta(0),
    **wait: Any,
) -> datetime:
    """Record a step on a connection of the worker; return when it completed, when a sleep ends, or when a wait times out.

    `job`, `worker_id`: the attempt, which must hold the job. `kind`: the kind of step. `place`: its name and key. `output`:
    JSON text; None for a wait that goes on or timed out. `took`: its duration, of a sleep too; the timeout of a wait that
    begins. `wait`: of a wait, the name of the `event`, and `is_over`.
    Locks: the job, until the transaction ends.
    Raises: LostAttemptError if the worker no longer holds the attempt. Obliges: roll back the transaction then.
    """
    parameters = _parameters(job, worker_id, place, took) | {"step_output": output} | wait
    row = connection.execute(steps.record(model, kind), parameters).first()
    if row is None:
        raise LostAttemptError(job.id, job.attempt)
    until: datetime = row.until
    return until


def record_transaction(
    session: Session,
    model: JobClass,
    job: ClaimedJob,
    worker_id: str,
    *,
    place: tuple[str, str],
    took: timedelta,
    session_name: str | None,
) -> bool:
    """Record a step in the handler's transaction that wrote its effects; return whether the session hid the queue's tables.

    They are found then by changing its search path, as in `completions.complete_attempts`.
    `job`, `worker_id`, `place`, `took`: as in `record_step`. `session_name`: name of the handler's transaction.
    Locks: the job, until the transaction ends. Obliges: roll back the transaction if it raises.
    Raises: LostAttemptError if the worker no longer holds the attempt; HandlerCommitError if the handler ended its
    transaction; CompletionRefusedError if the session does not see the job's row, or may not write.
    """
    parameters = _parameters(job, worker_id, place, took) | {"step_output": None, "table_oid": job.table_oid}
    record = steps.record(model, StepKind.TRANSACTION, in_session=True)
    with refusals(job):
        row = session.execute(record, parameters).first()
    if row is not None:
        check_session(row.session_name, session_name)
        return False
    with claimed_table_visible(session, model, job.table_oid, session_name) as view:
        if view.has_table:
            with refusals(job):
                row = session.execute(record, parameters).first()
        if row is None:
            ((_, job_row),) = view.rows([job])
            if job_row is not None and (job_row.attempt, job_row.leased_by) != (job.attempt, worker_id):
                raise LostAttemptError(job.id, job.attempt)
            raise view.refusal(job, job_row)
    return True


def _parameters(job: ClaimedJob, worker_id: str, place: tuple[str, str], took: timedelta) -> dict[str, Any]:
    fence = {"job_id": job.id, "job_attempt": job.attempt, "worker_id": worker_id}
    return fence | {"step_name": place[0], "step_key": place[1], "took": took}
