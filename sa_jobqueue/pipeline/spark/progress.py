"""Result of workers on executors, and progress of the tasks of a write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any


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


@contextmanager
def counted_tasks(spark: Any) -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield a function that returns the number of completed tasks, and of all tasks, of the stages seen in the meantime.

    Over Spark Connect, these are the stages of all operations of the session; otherwise those of the Spark application.
    """
    counts: dict[Any, tuple[int, int]] = {}

    def total() -> tuple[int, int]:
        return sum(completed for completed, _ in counts.values()), sum(count for _, count in counts.values())

    if is_connect(spark):

        def handler(stages: Any, inflight_tasks: int, operation_id: Any, _: bool) -> None:
            for info in stages or ():
                counts[operation_id, info.stage_id] = (info.num_completed_tasks, info.num_tasks)

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
            stage_info = tracker.getStageInfo(stage)
            if stage_info is not None:
                counts[stage] = (stage_info.numCompletedTasks, stage_info.numTasks)
        return total()

    yield measure


def is_connect(spark: Any) -> bool:
    """Return whether a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
