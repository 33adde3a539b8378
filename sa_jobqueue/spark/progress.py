"""Progress and result of workers on executors, and how it is shown: one line now and then, or a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_SECONDS: Final = 10.0
"""Seconds between two lines, unless a batch of tasks ended or the workers started to drain."""


class WorkersEnd(StrEnum):
    """Reason why a set of workers ended."""

    IDLE = "idle"
    """A whole batch of tasks found nothing to do for `idle_exit`."""
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
    rounds: int = 0
    completed: int = 0
    """Number of completed jobs."""
    failed: int = 0
    """Number of attempts that ended without success; the history has each."""
    lost: int = 0
    """Number of attempts whose lease was lost before they ended."""
    elapsed: timedelta = timedelta(0)
    ended: WorkersEnd | None = None
    """Why the workers ended; None while they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersProgress:
    """Progress of workers on executors, reported about every second."""

    report: WorkersReport
    """Result of the batches that have ended."""
    slots: int
    workers: int
    """Number of registered workers that send heartbeats."""
    running: int
    """Number of jobs that are running."""
    draining: bool


def describe(progress: WorkersProgress) -> str:
    """Return one line of text."""
    report = progress.report
    state = f", {report.ended}" if report.ended else ", draining" if progress.draining else ""
    return (
        f"{report.name}: {progress.workers}/{progress.slots} workers run {progress.running} jobs; "
        f"{report.rounds} rounds: {report.completed} completed, {report.failed} failed, {report.lost} lost{state}"
    )


def print_lines() -> Callable[[WorkersProgress], None]:
    """Return a function that prints a line to standard error every ten seconds, and at each change of state."""
    last: tuple[float, object] = (0.0, None)

    def show(progress: WorkersProgress) -> None:
        nonlocal last
        now, changed = time.monotonic(), (progress.report.rounds, progress.draining, progress.report.ended)
        if changed != last[1] or now - last[0] >= LINE_SECONDS:
            last = now, changed
            print(describe(progress), file=sys.stderr, flush=True)

    return show


def show_bar() -> Callable[[WorkersProgress], None]:
    """Return a function that shows a bar on standard error, of the slots that have a worker, until the workers end."""
    bar = Progress(BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True))
    task: TaskID | None = None

    def show(progress: WorkersProgress) -> None:
        nonlocal task
        if task is None:
            bar.start()
            task = bar.add_task("", total=progress.slots)
        bar.update(task, completed=progress.workers, description=describe(progress))
        if progress.report.ended is not None:
            bar.stop()

    return show
