"""Progress and result of workers on executors, shown as lines, and progress of the tasks of a write."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from sa_jobqueue.display.printable import span

LINE_SECONDS: Final = 10.0
"""Seconds between two lines, unless a batch of tasks ended or the workers started to drain."""


class WorkersEnd(StrEnum):
    """Reason why a set of workers ended."""

    IDLE = "idle"
    """A whole batch of tasks found no job for `idle_exit`."""
    DRAINED = "drained"
    """They were drained on request."""
    CANCELLED = "cancelled"
    """They did not drain in time; their jobs are rescued."""
    FAILED = "failed"
    """Tasks failed permanently; `wait` raises the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersReport:
    """Result of workers on executors. It excludes killed tasks, whose work is recorded in the database only."""

    name: str
    """The workers' name: the prefix and a random suffix."""
    rounds: int = 0
    """Number of batches of Spark tasks that have ended."""
    completed: int = 0
    """Number of completed jobs."""
    failed: int = 0
    """Number of attempts that failed, timed out, died or were cancelled; snoozed and released ones are not counted."""
    lost: int = 0
    """Number of attempts whose lease was lost before they ended."""
    elapsed: timedelta = timedelta(0)
    """Time since the workers were started."""
    ended: WorkersEnd | None = None
    """Why the workers ended; None while they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersProgress:
    """Progress of workers on executors, reported about every second."""

    report: WorkersReport
    """Result of the batches that have ended."""
    slots: int
    """Number of slots."""
    workers: int
    """Number of registered workers that send heartbeats."""
    running: int
    """Number of jobs that are running."""
    draining: bool
    """Whether the workers were asked to drain."""
    due: int | None = None
    """Number of due jobs in its queues, counted every ten seconds up to 100,000 per priority; None at first."""
    is_capped: bool = False
    """Whether a count stopped there, so that `due` is a lower bound."""


def describe(progress: WorkersProgress) -> str:
    """Return the progress as one line of text."""
    report = progress.report
    state = f", {report.ended}" if report.ended else ", draining" if progress.draining else ""
    due = "" if progress.due is None else f", {progress.due:,}{' or more' if progress.is_capped else ''} due"
    return (
        f"{report.name}: {progress.workers}/{progress.slots} workers run {progress.running} jobs{due}; "
        f"{report.rounds} rounds: {report.completed} completed, {report.failed} failed, {report.lost} lost{state}"
    )


def print_lines(clock: Callable[[], float] = time.monotonic) -> Callable[[WorkersProgress], None]:
    """Return a function that prints a line to standard error every ten seconds, and at each change of state.

    A line has an estimate of the time left, if the number of due jobs has decreased since it was first counted. `clock`:
    seconds that only increase.
    """
    last: tuple[float, object] = (0.0, None)
    first: tuple[float, int] | None = None

    def show(progress: WorkersProgress) -> None:
        nonlocal last, first
        now, changed = clock(), (progress.report.rounds, progress.draining, progress.report.ended)
        if first is None and progress.due is not None and not progress.is_capped:
            first = now, progress.due
        if changed != last[1] or now - last[0] >= LINE_SECONDS:
            last = now, changed
            left = ""
            if first is not None and progress.due and not progress.report.ended and first[1] > progress.due:
                seconds = (now - first[0]) * progress.due / (first[1] - progress.due)
                left = f", about {span(timedelta(seconds=seconds))} left"
            print(describe(progress) + left, file=sys.stderr, flush=True)

    return show


@contextmanager
def counted_tasks(spark: Any) -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield a function that returns the number of completed tasks, and of all tasks, of the stages seen in the meantime.

    Over Spark Connect, these are the stages of all operations of the session; otherwise those of the Spark application.
    """
    counts: dict[Any, tuple[int, int]] = {}

    def total() -> tuple[int, int]:
        return sum(done for done, _ in counts.values()), sum(count for _, count in counts.values())

    if is_connect(spark):

        def handler(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
            for one in stages or ():
                counts[operation_id, one.stage_id] = (one.num_completed_tasks, one.num_tasks)

        spark.registerProgressHandler(handler)
        try:
            yield total
        finally:
            spark.removeProgressHandler(handler)
        return
    tracker = spark.sparkContext.statusTracker()

    def measure() -> tuple[int, int]:
        active = tracker.getActiveStageIds()
        for stage in counts.keys() - set(active):
            counts[stage] = (counts[stage][1], counts[stage][1])
        for stage in active:
            seen = tracker.getStageInfo(stage)
            if seen is not None:
                counts[stage] = (seen.numCompletedTasks, seen.numTasks)
        return total()

    yield measure


def is_connect(spark: Any) -> bool:
    """Return whether a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
