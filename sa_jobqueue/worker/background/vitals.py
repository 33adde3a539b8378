"""Whether a worker's components make progress; readable from any thread, even while the event loop hangs.

A component that is **stuck** will not recover, and the process should end. A database that does not answer is not the
worker's fault, and the worker keeps trying. So a component counts as alive as long as it tries.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy.exc import DBAPIError

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.splitting import sqlstate
from sa_jobqueue.worker import logs
from sa_jobqueue.worker.background.heartbeat import IDLE_MOST, Heartbeat
from sa_jobqueue.worker.background.listener import QUIET_SECONDS, Listener
from sa_jobqueue.worker.options import WorkerOptions

TICK: Final = 0.5
"""Seconds between two updates from the event loop."""
LIMIT: Final = 1.0
"""Seconds that a loop may be blocked without a warning."""
_EVERY: Final = 60.0
"""Seconds between two warnings of one job type."""
_AGAIN: Final = 0.1
"""Seconds until a second look, which a loop passes that did not run because the whole process was paused."""

JobIn = Callable[[asyncio.Task[object]], tuple[ClaimedJob | None, str]]
"""Returns the job that a task runs, if it runs one, and the place of its handler; "" if that is not known either."""


class Phase(StrEnum):
    """Phase of a worker's life."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartVitals:
    """Progress of one component of a worker."""

    name: str
    """Name of the component."""
    silent: timedelta
    """Time since its last progress."""
    usual: timedelta
    """Maximum time without progress in normal operation or while the database does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """State of a worker's components at one moment."""

    phase: Phase
    """Phase of the worker."""
    parts: tuple[PartVitals, ...]
    """The event loop, the heartbeat's thread and the listener, if started."""
    database_silent: timedelta | None
    """Time since the last heartbeat that the database acknowledged; None before the first."""
    database_error: str | None
    """The error with which the database answered the last heartbeat; None if it was acknowledged, or not answered."""
    is_leased: bool
    """Whether that is recent enough to start jobs."""
    is_listening: bool | None
    """Whether it receives notifications; None if listening is off. Otherwise it polls."""

    def stuck(self, after: timedelta) -> list[PartVitals]:
        """Return the components whose silence exceeds their usual maximum by `after`."""
        return [part for part in self.parts if part.silent > part.usual + after]

    @property
    def unready(self) -> list[str]:
        """Return the reasons why it cannot start jobs; empty if it can."""
        causes = [] if self.phase is Phase.RUNNING else [f"the worker is {self.phase}"]
        if self.database_silent is not None and not self.is_leased and self.phase is not Phase.STOPPED:
            cause = f"the database has not answered for {self.database_silent.total_seconds():.1f} s"
            if self.database_error:
                cause = f"heartbeats have failed for {self.database_silent.total_seconds():.1f} s: {self.database_error}"
            causes.append(cause)
        return causes


class VitalSigns:
    """Provides a worker's vitals, and warns, with the stack, while something blocks its event loop.

    The loop records every `TICK` that it runs. A thread reads that, and sleeps as long as the loop may be silent: jobs cost
    nothing.
    """

    def __init__(self, options: WorkerOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase = Phase.STARTING
        self._clock = clock
        self._last_active: float | None = None
        self._heartbeat: Heartbeat | None = None
        self._listener: Listener | None = None
        lost = 2 * options.heartbeat_timeout
        """Time limit for a connection attempt and for a missing answer."""
        self._heartbeat_usual = max(options.heartbeat_interval, timedelta(seconds=IDLE_MOST)) + lost
        self._listen_usual = timedelta(seconds=QUIET_SECONDS) + lost
        self._stopped = threading.Event()
        self._warned: dict[str, float] = {}
        """By job type, or name of another task: when it was last named."""

    def watch(self, heartbeat: Heartbeat, listener: Listener | None, job_in: JobIn) -> None:
        """Include these components and the running loop, whose thread is this one, from now on. The worker is running."""
        self._heartbeat, self._listener = heartbeat, listener
        self._last_active = self._clock()
        self.phase = Phase.RUNNING
        self._stopped = threading.Event()
        watched = asyncio.get_running_loop(), threading.get_ident(), job_in, self._stopped
        threading.Thread(target=self._watch_loop, args=watched, name="sa_jobqueue loop watch", daemon=True).start()

    def stop(self) -> None:
        """Include no components: they have been stopped."""
        self._stopped.set()
        self.phase = Phase.STOPPED
        self._last_active = self._heartbeat = self._listener = None

    def beat(self) -> None:
        """Record the loop's progress."""
        self._last_active = self._clock()

    def _watch_loop(self, loop: asyncio.AbstractEventLoop, thread_id: int, job_in: JobIn, stopped: threading.Event) -> None:
        reported: float | None = None
        while not stopped.is_set():
            last_active = self._last_active
            silent = 0.0 if last_active is None else self._clock() - last_active - TICK
            if silent < LIMIT or last_active == reported:
                stopped.wait(max(_AGAIN, LIMIT - silent))
            elif not stopped.wait(_AGAIN) and self._last_active == last_active:
                reported = last_active
                self._report(loop, thread_id, job_in, silent)

    def _report(self, loop: asyncio.AbstractEventLoop, thread_id: int, job_in: JobIn, silent: float) -> None:
        task = asyncio.current_task(loop)
        frame = sys._current_frames().get(thread_id)
        if task is None or frame is None:  # it waits for the processor, or has just gone on
            return
        job, handler = job_in(task)
        name, now = task.get_name() if job is None else job.type_name, self._clock()
        if now - self._warned.get(name, -_EVERY) < _EVERY:
            return
        self._warned[name] = now
        logs.warn_of_blocked_loop(silent, name, job, handler, "".join(traceback.format_stack(frame)))

    def read(self) -> Vitals:
        """Return the current vitals. Thread-safe."""
        last_active, heartbeat, listener = self._last_active, self._heartbeat, self._listener
        parts = []
        if last_active is not None:
            parts.append(self._part("event loop", last_active, timedelta(seconds=TICK)))
        if heartbeat is not None:
            parts.append(self._part("heartbeat", heartbeat.last_active, self._heartbeat_usual))
        if listener is not None:
            parts.append(self._part("listener", listener.last_active, self._listen_usual))
        return Vitals(
            phase=self.phase,
            parts=tuple(parts),
            database_silent=None if heartbeat is None else heartbeat.silent,
            database_error=_answered(None if heartbeat is None else heartbeat.failure),
            is_leased=heartbeat is not None and heartbeat.is_safe,
            is_listening=None if listener is None else listener.listening.is_set(),
        )

    def _part(self, name: str, last_active: float, usual: timedelta) -> PartVitals:
        return PartVitals(name=name, silent=timedelta(seconds=max(0.0, self._clock() - last_active)), usual=usual)


def _answered(error: DBAPIError | None) -> str | None:
    """Return the first line of an error that the server sent; None for a lost connection, or none."""
    if error is None or sqlstate(error) is None:
        return None
    message = next(iter(str(error.orig).splitlines()), "")
    return f"{type(error.orig).__name__}: {message}"[:200]
