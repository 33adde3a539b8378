"""How many of the chains that one job waits for have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.errors import JobNotFoundError
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.given_ids import check_id
from sa_jobqueue.statements import blockers
from sa_jobqueue.types import JobId


@dataclass(frozen=True, slots=True)
class BlockerCounts:
    """Counts of the chains that a job waits or waited for, by their state at one moment."""

    open: int
    """Not ended yet."""
    completed: int
    """Ended with that status."""
    dead: int
    """Ended with that status; one that is redriven is open again."""
    cancelled: int
    """Ended with that status."""

    @property
    def total(self) -> int:
        """Total number."""
        return self.open + self.completed + self.dead + self.cancelled

    @property
    def ended(self) -> int:
        """Those that are not open."""
        return self.total - self.open


def count_blockers(session: Session, job_id: JobId, *, model: type[JobMixin[Any]] = Job) -> BlockerCounts:
    """Return the number of chains that a job waits or waited for, by their state. Reads a row for each chain.

    `job_id`: id of the job that waits.
    Raises: JobNotFoundError.
    """
    check_id(model, "job_id", job_id)
    with translated():
        row = session.execute(blockers.counts(model), {"job_id": job_id}).one()
    if not row.is_there:
        raise JobNotFoundError([job_id], reason="")
    return BlockerCounts(*tuple(row)[1:])
