"""Whether a worker's components make progress; readable from any thread, even while the event loop hangs.

A component that is **stuck** will not recover, and the process should end. A database that does not answer is not the
worker's fault, and the worker keeps trying. So a component counts as alive as long as it tries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from sa_jobqueue.worker.background.heartbeat import IDLE_MOST, Heartbeat
from sa_jobqueue.worker.background.listener import QUIET_SECONDS, Listener
from sa_jobqueue.worker.options import WorkerOptions

TICK: Final = 0.5
"""Seconds between two updates from the event loop."""


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
            causes.append(f"the database has not answered for {self.database_silent.total_seconds():.1f} s")
        return causes


class VitalSigns:
    """Provides a worker's vitals; its event loop records that it runs every `TICK`."""

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

    def watch(self, heartbeat: Heartbeat, listener: Listener | None) -> None:
        """Include these components from now on. The worker is running."""
        self._heartbeat, self._listener = heartbeat, listener
        self._last_active = self._clock()
        self.phase = Phase.RUNNING

    def stop(self) -> None:
        """Include no components: they have been stopped."""
        self.phase = Phase.STOPPED
        self._last_active = self._heartbeat = self._listener = None

    def beat(self) -> None:
        """Record the loop's progress."""
        self._last_active = self._clock()

    @property
    def loop_last_active(self) -> float | None:
        """When the event loop last recorded its progress; None unless the worker runs. Thread-safe."""
        return self._last_active

    @property
    def loop_silent(self) -> float:
        """The seconds for which the event loop is known not to have run; 0 unless the worker runs. Thread-safe."""
        last_active = self._last_active
        return 0.0 if last_active is None else max(0.0, self._clock() - last_active - TICK)

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
            is_leased=heartbeat is not None and heartbeat.is_safe,
            is_listening=None if listener is None else listener.listening.is_set(),
        )

    def _part(self, name: str, last_active: float, usual: timedelta) -> PartVitals:
        return PartVitals(name=name, silent=timedelta(seconds=max(0.0, self._clock() - last_active)), usual=usual)
