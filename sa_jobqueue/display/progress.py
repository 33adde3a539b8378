"""Progress lines on standard error: the step of a long operation, how far it is, and about how long it will take."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from sa_jobqueue.display.printable import printable, span

INTERVAL_SECONDS: Final = 10.0
"""Seconds between two lines of one step."""


class ProgressLines(AbstractContextManager["ProgressLines"]):
    """Prints a line when a step begins, one every ten seconds while it lasts, and one when the block succeeds.

    A step that begins by `update` is not announced: without another line, the block prints nothing.

        with ProgressLines("load") as lines:
            lines.begin("reading", total=200)
            lines.update(50)  # "load: reading, 50 of 200 (25 %), 12 s, about 36 s left"

    `name`: begins each line. `write`: receives each line; by default it goes to standard error. `interval`: seconds between
    two lines of a step. `clock`: seconds that only increase.
    """

    def __init__(
        self,
        name: str,
        *,
        write: Callable[[str], None] | None = None,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write or _write
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began = self._step_began = self._printed = clock()
        self._has_printed = False
        self._step: str | None = None
        self._completed, self._total = 0, 0
        self._measure: Callable[[], tuple[int, int]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"sa_jobqueue progress {name}", daemon=True)

    def begin(self, step: str, *, total: int = 0, measure: Callable[[], tuple[int, int]] | None = None) -> None:
        """Begin a step, and print its name.

        `total`: how much there is to do, of whatever `update` counts. `measure`: returns the done part and the total; it is
        called before each further line, on another thread. If it fails, the line has the share it returned last.
        """
        with self._lock:
            self._step, self._step_began = step, self._clock()
            self._completed, self._total, self._measure = 0, total, measure
            self._print(step)

    def update(self, completed: int, total: int | None = None, *, step: str | None = None) -> None:
        """Record how much of the step is done, and which step it is; prints nothing."""
        self._completed, self._total = completed, self._total if total is None else total
        if step is not None and step != self._step:
            self._step, self._step_began = step, self._clock()

    def tick(self) -> None:
        """Print a line if the last one is older than the interval. The thread of the block calls this."""
        if self._clock() - self._printed < self._interval or self._step is None:
            return
        if self._measure is not None:
            with suppress(Exception):  # the last known share is printed, and the next line may have a newer one
                self.update(*self._measure())
        with self._lock:
            self._print(f"{self._step}{self._share()}, {span(self._since(self._step_began))}{self._left()}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None and self._has_printed:  # what reports the error says more
            self._print(f"done after {span(self._since(self._began))}")

    def _run(self) -> None:
        while not self._ended.wait(min(1.0, self._interval)):
            self.tick()

    def _print(self, text: str) -> None:
        self._printed, self._has_printed = self._clock(), True
        self._write(printable(f"{self._name}: {text}"))

    def _share(self) -> str:
        if not self._total:
            return f", {self._completed:,}" if self._completed else ""
        return f", {self._completed:,} of {self._total:,} ({self._completed / self._total:.0%})"

    def _left(self) -> str:
        if not 0 < self._completed < self._total:
            return ""
        return f", about {span(self._since(self._step_began) * ((self._total - self._completed) / self._completed))} left"

    def _since(self, instant: float) -> timedelta:
        return timedelta(seconds=self._clock() - instant)


def _write(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
