"""A thread that ends the process when a part of its worker is stuck: whoever started it starts another.

What the worker held is taken back by others then, as after a crash. A database that does not answer is no reason: the
parts go on trying. Nor does it help where a handler in C never lets go of the interpreter: no thread runs then, and only
a probe from outside notices (`/livez`, systemd's WatchdogSec).
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sa_jobqueue.cli._systemd import notify, watchdog_limit
from sa_jobqueue.worker.background.vitals import Vitals

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_LIMIT: Final = timedelta(minutes=5)
STUCK: Final = 70
"""The exit status of a worker that is stuck: EX_SOFTWARE of sysexits.h."""

_PATIENCE: Final = 2.0

_log = logging.getLogger("sa_jobqueue.watchdog")


class Watchdog:
    """Looks at a worker's signs of life, ten times within half its limit.

    A part that is silent for half of `limit` longer than it should be is told of, with every thread's stack; for all of it,
    and the process ends. `told_each`: called at each look at which nothing is stuck.
    """

    def __init__(
        self,
        read: Callable[[], Vitals],
        *,
        limit: timedelta,
        end: Callable[[int], None],
        told_each: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._limit = limit
        self._end = end
        self._told_each = told_each
        self._clock = clock
        self.rest = limit.total_seconds() / 20
        """Seconds between two looks."""
        self._looked = clock()
        self._blind_until = 0.0
        self._told = False

    def look(self) -> None:
        """Look once."""
        now = self._clock()
        if now - self._looked > self.rest + self._limit.total_seconds() / 10:
            # The whole process was stopped, or the machine slept: everything is silent, and will move first.
            self._blind_until = now + self._limit.total_seconds() / 2
        self._looked = now
        vitals = self._read()
        stuck = vitals.stuck(self._limit / 2)
        if not stuck or now < self._blind_until:
            self._told = self._told and bool(stuck)
            self._told_each()
            return
        words = ", ".join(f"the {part.name} for {part.silent.total_seconds():.0f} s" for part in stuck)
        if not self._told:
            self._told = True
            _within(_PATIENCE, lambda: _tell(words))
        if vitals.stuck(self._limit):
            _within(_PATIENCE, lambda: _log.critical("stuck: %s; ending with status %d, others take over", words, STUCK))
            self._end(STUCK)


def _tell(words: str) -> None:
    _log.error("stuck: %s; the stacks of all threads follow", words)
    faulthandler.dump_traceback(sys.stderr, all_threads=True)


def _within(patience: float, what: Callable[[], None]) -> None:
    """Do something, and go on without it after `patience` seconds: what is stuck may be the log itself."""
    thread = threading.Thread(target=what, name="sa_jobqueue watchdog tells", daemon=True)
    thread.start()
    thread.join(patience)


@contextmanager
def watching(read: Callable[[], Vitals], *, limit: timedelta | None, end: Callable[[int], None]) -> Iterator[timedelta]:
    """Watch a worker for the length of a block; give the limit. None: the service manager's, or `DEFAULT_LIMIT`; 0: never.

    Where a service manager asks for it, it is told that the worker lives as long as nothing is stuck.
    """
    asked = watchdog_limit()
    used = limit if limit is not None else asked or DEFAULT_LIMIT
    if not used:
        yield used
        return
    stopped = threading.Event()
    watchdog = Watchdog(read, limit=used, end=end, told_each=(lambda: notify("WATCHDOG=1")) if asked else lambda: None)
    rest = min(watchdog.rest, asked.total_seconds() / 4) if asked else watchdog.rest

    def run() -> None:
        while not stopped.wait(rest):
            watchdog.look()

    thread = threading.Thread(target=run, name="sa_jobqueue watchdog", daemon=True)
    thread.start()
    try:
        yield used
    finally:
        stopped.set()
        thread.join(_PATIENCE)  # bounded: it may be telling a log that is stuck
