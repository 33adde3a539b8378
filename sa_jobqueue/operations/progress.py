"""Progress of a running job, as reported by its handler."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.errors import JobNotFoundError
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.given_ids import check_id
from sa_jobqueue.statements import progress
from sa_jobqueue.types import JobId, Progress


def get_progress(session: Session, job_id: JobId, *, model: type[JobMixin[Any]] = Job) -> Progress | None:
    """Return the progress that a job's running attempt had reported by its worker's last heartbeat.

    None if the job is not running, or its attempt has not reported any yet. `job_id`: id of the job.
    Raises: JobNotFoundError.
    """
    check_id(model, "job_id", job_id)
    with translated():
        row = session.execute(progress.of_job(model), {"job_id": job_id}).one_or_none()
    if row is None:
        raise JobNotFoundError([job_id], reason="")
    return progress.read(row)
