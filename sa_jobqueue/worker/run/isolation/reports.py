"""Progress reports on their way from a child to its worker: at most one each interval, and always the last one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sa_jobqueue.worker.run.isolation.messages import Message

INTERVAL: Final = 0.5
"""Seconds between two reports of an attempt to the worker: it writes them much more rarely."""


def timer(seconds: float, call: Callable[[], None]) -> Any:
    """Call a function later, in a thread that does not keep the process; return what can be cancelled."""
    made = threading.Timer(seconds, call)
    made.daemon = True
    made.start()
    return made


class Reports:
    """The reports of one attempt. A handler may report in a tight loop, from any thread; few of them are sent."""

    def __init__(
        self,
        send: Callable[[Message], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Any] = timer,
    ) -> None:
        self._send, self._clock, self._later = send, clock, later
        self._lock = threading.Lock()
        self._due = clock()
        self._next: tuple[float, float | None, str | None] | None = None
        self._timer: Any = None
        self._closed = False

    def put(self, done: float, total: float | None, message: str | None) -> None:
        """Send a report now, or once the interval is over unless a later one takes its place."""
        with self._lock:
            self._next = done, total, message
            if self._timer is None and not self._closed:
                left = self._due - self._clock()
                if left <= 0:
                    self._flush()
                else:
                    self._timer = self._later(left, self._on_time)

    def close(self) -> None:
        """Send no more: the attempt is over."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    def _on_time(self) -> None:
        with self._lock:
            self._timer = None
            if not self._closed:
                self._flush()

    def _flush(self) -> None:
        if self._next is not None:
            done, total, message = self._next
            self._next = None
            self._due = self._clock() + INTERVAL
            self._send({"is": "progress", "done": done, "total": total, "message": message})
