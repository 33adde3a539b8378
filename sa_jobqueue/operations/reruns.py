"""Run a job that has ended once more, as a new job."""

from __future__ import annotations

from sqlalchemy.orm import Session

from sa_jobqueue.errors import IllegalTransitionError, NotFoundError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.checks import check_id
from sa_jobqueue.operations.audit import check_by, record
from sa_jobqueue.operations.rows import written_columns
from sa_jobqueue.operations.steps import check_step
from sa_jobqueue.operations.transactions import translated
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, JobT
from sa_jobqueue.statements import jobs, steps
from sa_jobqueue.types import ENDED, JobId

_COPIED = ("queue", "fairness_key", "priority", "timeout", "rate_cost", "input_version", "ordering_key")
"""The options that the new job has as well."""


def rerun_job(
    session: Session,
    job_id: JobId,
    *,
    from_step: str | None = None,
    by: str | None = None,
    model: type[JobT] = DEFAULT_MODEL,  # type: ignore[assignment]
) -> JobT:
    """Enqueue a new job like one that has ended, to run again from a step, and return it. The old job does not change.

    The new job is a new chain, due now, with the old one's type, input, options and application columns, but without
    its blockers, deduplication key, `expires_at` and deadline.

    `job_id`: a completed, dead or cancelled job.
    `from_step`: name of the first step that runs again, with those that completed after it. The steps that completed
    before are copied as they are recorded, and the attempts of the new job begin with 2; by default none is copied.
    Changes: inserts the job and its steps.
    Locks: the job, the root of its chain, and the jobs whose results its steps wait for.
    Raises: NotFoundError for the job, or for deleted ones whose results steps before it need; IllegalTransitionError for a
    job that has not ended; InvalidOptionError if the job has no such step; InvalidJobError if it was inserted by SQL with a
    value that `Job` refuses; IntegrityError for an application column that is unique.
    """
    check_id(model, "job_id", job_id)
    check_by(by)
    session.flush()
    children = list(session.scalars(steps.children(model), {"job_ids": [job_id]})) if from_step is not None else []
    with translated():
        session.execute(jobs.lock(model, [job_id, *children]))
        old = session.get(model, job_id, populate_existing=True)
    if old is None:
        raise NotFoundError("job", [job_id])
    if old.status not in ENDED:
        raise IllegalTransitionError(
            f"job {job_id} is {old.status}: only jobs that have ended run again. No job was changed."
        )
    place = {"job_id": job_id, "step_name": from_step}
    if from_step is not None:
        check_step(session, model, [job_id], from_step)
        if lost := list(session.scalars(steps.lost_children(model), place)):
            raise NotFoundError("job", lost, reason=f"their results are needed before step {from_step!r}")
    new = _like(old)
    new.max_attempts = old.max_attempts - session.execute(jobs.uncounted(model), {"job_id": job_id}).scalar_one()
    if from_step is not None:
        # The attempt that recorded them counts as its first: a first attempt reads no steps.
        new.attempt, new.max_attempts = 1, new.max_attempts + 1
    with translated():
        session.add(new)
        session.flush()
    if from_step is not None:
        session.execute(steps.copy_before(model), place | {"copy_id": new.id})
    record(session, "rerun_job", by=by, ids=[new.id], model=model, jobs=[job_id], from_step=from_step)
    return new


def _like(old: JobT) -> JobT:
    """Return a new job with the input, the options and the application's columns of another, as they are stored."""
    job_class = type(old)
    new = job_class(old.type_name, _handler=None, **{name: getattr(old, name) for name in _COPIED})
    new.input = old.input
    for key, column in written_columns(job_class).items():
        if key not in vars(JobMixin) and column.identity is None:
            setattr(new, key, getattr(old, key))
    return new
