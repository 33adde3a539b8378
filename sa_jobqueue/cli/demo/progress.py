"""Progress of the demo: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import progress as rich_progress
from rich.console import Console
from rich.text import Text

from sa_jobqueue.printable import printable


class Bar(Protocol):
    """A progress bar."""

    def advance_to(self, done: int) -> None:
        """Show the number of items done."""


class Progress:
    """Prints events and progress bars on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        """Print one line."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Bar]:
        """Show a progress bar while the block runs."""
        if not self._console.is_terminal:
            yield _Lines(self, what, total)
            return
        columns = (
            rich_progress.TextColumn("{task.description:>10}"),
            rich_progress.BarColumn(bar_width=None),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
        )
        with rich_progress.Progress(*columns, console=self._console) as shown:
            yield _RichBar(shown, shown.add_task(what, total=total))


class _RichBar:
    def __init__(self, shown: rich_progress.Progress, task: rich_progress.TaskID) -> None:
        self._shown = shown
        self._task = task

    def advance_to(self, done: int) -> None:
        self._shown.update(self._task, completed=done)


class _Lines:
    """Prints a line after each tenth of the total."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress = progress
        self._what = what
        self._total = total
        self._tenths = 0

    def advance_to(self, done: int) -> None:
        tenths = done * 10 // max(self._total, 1)
        if tenths > self._tenths:
            self._tenths = tenths
            self._progress.say(f"  {self._what} {done} of {self._total}")
