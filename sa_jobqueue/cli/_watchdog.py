"""A thread that ends the process when a part of its worker is stuck, so that its supervisor restarts it.

Other workers rescue its jobs, as after a crash. A database that does not answer does not count as stuck, as the parts keep
retrying. The watchdog does not help if C code in a handler never releases the GIL: no thread runs then, and only an
external probe notices (`/livez`, systemd's WatchdogSec).

systemd is notified of the states ready, alive and stopping, if it started the process and expects that.
Source: sd_notify(3) and systemd.service(5): one datagram to the socket in `NOTIFY_SOCKET`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Final

from sa_jobqueue.observe import probes
from sa_jobqueue.worker.background.vitals import Vitals

DEFAULT_LIMIT: Final = probes.DEFAULT_LIMIT
STUCK: Final = 70
"""Exit status of a worker that is stuck: EX_SOFTWARE of sysexits.h."""

_STEP_TIMEOUT_SECONDS: Final = 2.0
VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables that children must not inherit: one process notifies for a service."""

_log = logging.getLogger("sa_jobqueue.watchdog")


@dataclass(eq=False)
class Watchdog:
    """Checks a worker's vital signs, ten times within half its limit.

    A part that is overdue by half of `limit` is logged, with the stacks of all threads; overdue by `limit`, it ends the
    process. `on_healthy`: called at each check that finds nothing stuck.
    """

    read: Callable[[], Vitals]
    _: KW_ONLY
    limit: timedelta
    end: Callable[[int], None]
    on_healthy: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.rest = self.limit.total_seconds() / 20
        """Seconds between two checks."""
        self._checked_at = self.clock()
        self._blind_until = 0.0
        self._reported = False

    def check(self) -> None:
        """Check once."""
        now = self.clock()
        if now - self._checked_at > self.rest + self.limit.total_seconds() / 10:
            # The process was stopped or the machine slept: all parts are overdue, and need time to move again.
            self._blind_until = now + self.limit.total_seconds() / 2
        self._checked_at = now
        vitals = self.read()
        stuck = vitals.stuck(self.limit / 2)
        if not stuck or now < self._blind_until:
            self._reported = self._reported and bool(stuck)
            self.on_healthy()
            return
        words = ", ".join(f"the {part.name} for {part.silent.total_seconds():.0f} s" for part in stuck)
        if not self._reported:
            self._reported = True
            _within(_STEP_TIMEOUT_SECONDS, lambda: _report(words))
        if vitals.stuck(self.limit):
            _within(
                _STEP_TIMEOUT_SECONDS,
                lambda: _log.critical("stuck: %s; exiting with status %d; other workers rescue the jobs", words, STUCK),
            )
            self.end(STUCK)


def _report(words: str) -> None:
    _log.error("stuck: %s; the stacks of all threads follow", words)
    faulthandler.dump_traceback(sys.stderr, all_threads=True)


def _within(patience: float, report: Callable[[], None]) -> None:
    """Call `report`, and continue without it after `patience` seconds: the log itself may be stuck."""
    thread = threading.Thread(target=report, name="sa_jobqueue watchdog report", daemon=True)
    thread.start()
    thread.join(patience)


@contextmanager
def watching(read: Callable[[], Vitals], *, limit: timedelta | None, end: Callable[[int], None]) -> Iterator[timedelta]:
    """Watch a worker while the block runs; yield the limit. None: systemd's, or `DEFAULT_LIMIT`; 0: disabled.

    If systemd has a watchdog, it is notified as long as nothing is stuck.
    """
    systemd_limit = watchdog_limit()
    used = limit if limit is not None else systemd_limit or DEFAULT_LIMIT
    if not used:
        yield used
        return
    stopped = threading.Event()
    watchdog = Watchdog(
        read, limit=used, end=end, on_healthy=(lambda: notify("WATCHDOG=1")) if systemd_limit else lambda: None
    )
    pause_seconds = min(watchdog.rest, systemd_limit.total_seconds() / 4) if systemd_limit else watchdog.rest

    def run() -> None:
        while not stopped.wait(pause_seconds):
            watchdog.check()

    thread = threading.Thread(target=run, name="sa_jobqueue watchdog", daemon=True)
    thread.start()
    try:
        yield used
    finally:
        stopped.set()
        thread.join(_STEP_TIMEOUT_SECONDS)  # bounded: it may be writing to a log that is stuck


def notify(state: str) -> None:
    """Send the service manager a state such as `READY=1`. Errors are ignored, as they must not stop the worker."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        # An abstract socket's name begins with a null byte, which no variable can hold.
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def watchdog_limit(environment: Mapping[str, str] = os.environ) -> timedelta | None:
    """Return how long the service manager waits for `WATCHDOG=1`; None if it does not, or for another process."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) <= 0 or (pid and pid != str(os.getpid())):
        return None
    return timedelta(microseconds=int(microseconds))


async def keep_notifying() -> None:
    """Report that this process is ready and, if systemd asks for it, again and again that its event loop works."""
    notify("READY=1")
    if limit := watchdog_limit():
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(limit.total_seconds() / 4)
