"""A health report and the single jobs behind it, read again and again on one connection: what a live view shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Engine

from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.observe.health.figures import Health
from sa_jobqueue.observe.health.measuring import health, reading
from sa_jobqueue.statements import lately
from sa_jobqueue.types import AttemptOutcome, JobStatus

SHOWN: Final = 20
"""Jobs of each kind that are told."""
_SCANNED: Final = 500
"""Attempts that are looked at for those that failed."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One that runs."""

    job_id: Any
    type_name: str
    queue: str
    attempt: int
    worker_id: str
    running_for: timedelta | None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One that ended in a way nobody wanted, and how its job stands now."""

    job_id: Any
    type_name: str
    status: JobStatus
    attempt: int
    outcome: AttemptOutcome
    error_type: str | None
    error_message: str | None
    """Its beginning."""
    ago: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One look."""

    health: Health
    longest: Sequence[RunningJob]
    """Those that run longest first."""
    failures: Sequence[FailedAttempt]
    """The newest first."""


@contextmanager
def overviews(
    engine: Engine, *, timeout: timedelta = timedelta(seconds=10), model: type[JobMixin[Any]] = Job, **options: Any
) -> Iterator[Callable[[], Overview]]:
    """Give a function that looks once, on a connection that is held for the length of the block.

    Each statement is a transaction of its own, bounded as those of `health`, whose other `options` it takes.
    Raises: what the driver raises; the connection may be lost then.
    """
    with reading(engine, timeout) as session:

        def look() -> Overview:
            report = health(session, model=model, **options)
            longest = session.execute(lately.longest(model), {"limit": SHOWN})
            failures = session.execute(lately.failures(model), {"limit": SHOWN, "scan": _SCANNED})
            return Overview(
                health=report,
                longest=[RunningJob(*row) for row in longest],
                failures=[FailedAttempt(*row) for row in failures],
            )

        yield look
