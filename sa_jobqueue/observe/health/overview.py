"""A health report with the longest running jobs and latest failures, for a live view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Engine, Row
from sqlalchemy.orm import Session

from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.observe.health.figures import Health
from sa_jobqueue.observe.health.measuring import Parts, measured, reading
from sa_jobqueue.observe.health.thresholds import Thresholds
from sa_jobqueue.statements import progress, recent
from sa_jobqueue.types import AttemptOutcome, JobStatus, Progress

SHOWN: Final = 20
"""Maximum number of jobs in each list."""
_SCANNED: Final = 500
"""Number of latest attempts that are scanned for failures."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job."""

    job_id: Any
    type_name: str
    queue: str
    attempt: int
    worker_id: str
    running_for: timedelta | None
    progress: Progress | None = None
    """Progress that its handler reported, as of the worker's last heartbeat."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An unsuccessful attempt, with the current status of its job."""

    job_id: Any
    type_name: str
    status: JobStatus
    attempt: int
    outcome: AttemptOutcome
    error_type: str | None
    error_message: str | None
    """The start of the message."""
    ago: timedelta
    fairness_key: str


@dataclass(frozen=True, slots=True)
class Overview:
    """A health report with single jobs."""

    health: Health
    longest: Sequence[RunningJob]
    """Longest running first."""
    failures: Sequence[FailedAttempt]
    """Newest first."""


def _running(row: Row[Any]) -> RunningJob:
    job = RunningJob(row.id, row.type_name, row.queue, row.attempt, row.leased_by, row.running_for)
    return replace(job, progress=progress.read(row))


@contextmanager
def overviews(
    engine: Engine,
    *,
    thresholds: Thresholds | None = None,
    window: timedelta = timedelta(minutes=1),
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    timeout: timedelta = timedelta(seconds=10),
    model: JobClass = Job,
) -> Iterator[Callable[[], Overview]]:
    """Yield a function that reads an overview, on a connection that is held while the block runs.

    Each statement is a separate transaction, bounded as those of a partial `health`, whose other options it takes.
    Raises: the driver's errors, unless the server has cancelled a statement; the connection may be lost then.
    """
    with reading(engine, timeout) as session:

        def longest(session: Session) -> list[RunningJob]:
            return [_running(row) for row in session.execute(recent.longest(model), {"limit": SHOWN})]

        def failures(session: Session) -> list[FailedAttempt]:
            found = session.execute(recent.failures(model), {"limit": SHOWN, "scan": _SCANNED})
            return [FailedAttempt(*row) for row in found]

        def read() -> Overview:
            parts = Parts(session, timeout=timeout)
            running: Sequence[RunningJob] = parts.read("longest", longest, [])
            failed: Sequence[FailedAttempt] = parts.read("latest", failures, [])
            return Overview(measured(parts, thresholds, window, heartbeat_timeout, model), running, failed)

        yield read
