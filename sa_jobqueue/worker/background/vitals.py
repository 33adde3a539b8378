"""Whether a worker's parts still move: read from any thread, so that it can be told while the event loop hangs.

What is told apart: a part that is **stuck** will not come back by itself, and the process should end; a database that does
not answer is nobody's fault here, and the worker goes on trying. So a part counts as moving as long as it tries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from sa_jobqueue.worker.background.heartbeat import Heartbeat
from sa_jobqueue.worker.background.listener import QUIET_SECONDS, Listener
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.options import WorkerOptions

_TICK: Final = 0.5
"""Seconds between two signs of life of the event loop."""


class Phase(StrEnum):
    """How far a worker has come."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartVitals:
    """One part of a worker."""

    name: str
    silent: timedelta
    """Since it last moved."""
    usual: timedelta
    """The longest it is silent when all is well, or when the database does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """A worker's signs of life at one moment."""

    phase: Phase
    parts: tuple[PartVitals, ...]
    """The event loop, the heartbeat's thread and the listener, as far as they were started."""
    database_silent: timedelta | None
    """Since the last beat that the database answered; None before the first."""
    is_leased: bool
    """Whether that is lately enough for jobs to be started."""
    is_listening: bool | None
    """Whether it hears notifications; None where it is not to. Without, it polls."""

    def stuck(self, after: timedelta) -> list[PartVitals]:
        """Return the parts that have been silent for `after` longer than they ever should be."""
        return [part for part in self.parts if part.silent > part.usual + after]

    @property
    def unready(self) -> list[str]:
        """What keeps it from starting jobs, in words; empty when nothing does."""
        causes = [] if self.phase is Phase.RUNNING else [f"the worker is {self.phase}"]
        if self.database_silent is not None and not self.is_leased and self.phase is not Phase.STOPPED:
            causes.append(f"the database has not answered for {self.database_silent.total_seconds():.1f} s")
        return causes


class VitalSigns(Component):
    """What a worker shows of itself, and the duty that shows that its event loop turns.

    A crash is restarted, as with any duty; nothing is left. Woken by its rest alone.
    """

    name = "vital signs"

    def __init__(self, options: WorkerOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase = Phase.STARTING
        self._clock = clock
        self._turned: float | None = None
        self._heartbeat: Heartbeat | None = None
        self._listener: Listener | None = None
        lost = 2 * options.heartbeat_timeout
        """Within it a connection attempt ends, and so does the wait for an answer that does not come."""
        self._beat_usual = options.heartbeat_interval + lost
        self._listen_usual = timedelta(seconds=QUIET_SECONDS) + lost

    def watch(self, heartbeat: Heartbeat, listener: Listener | None) -> None:
        """Show these from now on. The worker runs."""
        self._heartbeat, self._listener = heartbeat, listener
        self._turned = self._clock()
        self.phase = Phase.RUNNING

    def stop(self) -> None:
        """Show nothing any more: the parts have been stopped."""
        self.phase = Phase.STOPPED
        self._turned = self._heartbeat = self._listener = None

    async def run(self) -> None:
        """Show that the loop turns, until cancelled."""
        while True:
            self._turned = self._clock()
            await asyncio.sleep(_TICK)

    def read(self) -> Vitals:
        """Return how things are. May be called from any thread."""
        turned, heartbeat, listener = self._turned, self._heartbeat, self._listener
        parts = []
        if turned is not None:
            parts.append(self._part("event loop", turned, timedelta(seconds=_TICK)))
        if heartbeat is not None:
            parts.append(self._part("heartbeat", heartbeat.turned, self._beat_usual))
        if listener is not None:
            parts.append(self._part("listener", listener.turned, self._listen_usual))
        return Vitals(
            phase=self.phase,
            parts=tuple(parts),
            database_silent=None if heartbeat is None else heartbeat.silent,
            is_leased=heartbeat is not None and heartbeat.is_safe,
            is_listening=None if listener is None else listener.listening.is_set(),
        )

    def _part(self, name: str, turned: float, usual: timedelta) -> PartVitals:
        return PartVitals(name=name, silent=timedelta(seconds=max(0.0, self._clock() - turned)), usual=usual)
