"""Telling people how workers on executors stand: a line now and then, or a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from sa_jobqueue.spark.workers import WorkersProgress

LINE_SECONDS: Final = 10.0
"""Between two lines, unless a round has ended or the workers drain."""


def said(told: WorkersProgress) -> str:
    """Return one progress in words."""
    report = told.report
    state = f", {report.ended}" if report.ended else ", draining" if told.draining else ""
    return (
        f"{report.name}: {told.workers}/{told.slots} workers run {told.running} jobs; "
        f"{report.rounds} rounds: {report.completed} completed, {report.failed} failed, {report.lost} lost{state}"
    )


def print_lines() -> Callable[[WorkersProgress], None]:
    """Return what prints a line to standard error every ten seconds, and whenever something has changed for good."""
    last: tuple[float, object] = (0.0, None)

    def tell(told: WorkersProgress) -> None:
        nonlocal last
        now, changed = time.monotonic(), (told.report.rounds, told.draining, told.report.ended)
        if changed != last[1] or now - last[0] >= LINE_SECONDS:
            last = now, changed
            print(said(told), file=sys.stderr, flush=True)

    return tell


def show_bar() -> Callable[[WorkersProgress], None]:
    """Return what shows a bar of the slots that have a worker, on standard error, until they have ended."""
    bar = Progress(BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True))
    task: TaskID | None = None

    def tell(told: WorkersProgress) -> None:
        nonlocal task
        if task is None:
            bar.start()
            task = bar.add_task("", total=told.slots)
        bar.update(task, completed=told.workers, description=said(told))
        if told.report.ended is not None:
            bar.stop()

    return tell
