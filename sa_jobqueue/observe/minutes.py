"""The main figures of the last 24 hours, by queue and job type, from the minutes that workers record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.statements import minutes


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over some minutes."""

    key: Any
    """Start of the time, or the name of the queue or type."""
    seconds: int
    """Length of the recorded time."""
    enqueued: int
    completed: int
    failed: int
    """Attempts that failed, timed out, or were lost."""
    died: int
    cancelled: int
    due: float
    """Number of due jobs: the mean of a point of a series, the last of a total."""
    running: float
    """Number of running jobs, as `due`."""
    waits: Sequence[int]
    """Ended jobs by wait, in the buckets of `BOUNDS`."""
    runs: Sequence[int]
    """Ended jobs by the duration of their last attempt."""

    def per_second(self, name: str) -> float:
        """Return a count as a rate."""
        return float(getattr(self, name)) / self.seconds

    @property
    def failure_ratio(self) -> float | None:
        """Share of failed attempts among those that failed or completed; None without any."""
        ended = self.failed + self.completed
        return self.failed / ended if ended else None

    def wait(self, share: float) -> timedelta | None:
        """Return a percentile of the waits, such as of 0.95; None without any."""
        return percentile(self.waits, share)

    def run(self, share: float) -> timedelta | None:
        """Return a percentile of the durations; None without any."""
        return percentile(self.runs, share)


def percentile(buckets: Sequence[int], share: float) -> timedelta | None:
    """Return a percentile of a histogram in the buckets of `BOUNDS`, interpolated within its bucket. Pure.

    Above the last bound it is that bound. None for an empty histogram.
    """
    rank, below = share * sum(buckets), 0
    for at, count in enumerate(buckets):
        if count and below + count >= rank:
            low, high = (BOUNDS[at - 1] if at else 0.0), BOUNDS[min(at, len(BOUNDS) - 1)]
            return timedelta(seconds=low + (high - low) * (rank - below) / count)
        below += count
    return None


def combined(points: Sequence[Figures]) -> Figures | None:
    """Return the figures of several times as one; None of none. Pure."""
    if not points:
        return None
    seconds = sum(point.seconds for point in points)
    counts = (
        sum(getattr(point, name) for point in points) for name in ("enqueued", "completed", "failed", "died", "cancelled")
    )
    means = (sum(getattr(point, name) * point.seconds for point in points) / seconds for name in ("due", "running"))
    histograms = (
        [sum(each) for each in zip(*(getattr(point, name) for point in points), strict=True)] for name in ("waits", "runs")
    )
    return Figures(points[0].key, seconds, *counts, *means, *histograms)


def series(
    session: Session,
    *,
    since: datetime,
    step: timedelta = timedelta(minutes=1),
    queue: str | None = None,
    type_name: str | None = None,
    model: JobClass = Job,
) -> list[Figures]:
    """Return the figures over time, the oldest first: of everything, or of a queue, a job type or both."""
    names = {"queue": queue, "type_name": type_name} if queue or type_name else {"queue": "", "type_name": ""}
    rows = session.execute(minutes.series(model), {"since": since, "step": step, **names})
    return [_figures(row, row.minutes) for row in rows]


def totals(session: Session, *, since: datetime, by: str, model: JobClass = Job) -> dict[str, Figures]:
    """Return the figures of each queue, or of each job type, for `by` `queue` or `type_name`."""
    rows = session.execute(minutes.series(model, by=by), {"since": since, "queue": None, "type_name": None})
    return {row[0]: _figures(row, 1) for row in rows}


def _figures(row: Row[Any], ends: int) -> Figures:
    counted = (row.enqueued, row.completed, row.failed, row.died, row.cancelled)
    means = (row.due / ends, row.running / ends)
    return Figures(row[0], row.minutes * 60, *counted, *means, row.wait, row.run)
