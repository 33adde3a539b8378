"""Sends the worker's heartbeats from a dedicated thread, so that a handler that blocks the event loop loses no lease."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, Executable
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.db.timeouts import hang_up
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements import leases
from sa_jobqueue.types import WorkerState
from sa_jobqueue.version import __version__
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.options import WorkerOptions


@dataclass(frozen=True, slots=True)
class Identity:
    """The record of a worker in its row."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    queues: list[str]
    job_types: list[str]
    concurrency: int
    selectors: dict[str, Any] = field(default_factory=dict)
    type_slots: dict[str, int] = field(default_factory=dict)


def identify(jobs: JobQueue[Any], options: WorkerOptions) -> Identity:
    """Return the identity of a new worker, with a unique id."""
    name = options.name or socket.gethostname()[:40] or "worker"
    return Identity(
        id=f"{name}:{secrets.token_hex(6)}",
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        queues=list(options.limits),
        job_types=list(jobs.registry.names),
        concurrency=options.concurrency,
        selectors={queue: selector.settings for queue, selector in jobs.selectors.items() if queue in options.limits},
        type_slots={kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None},
    )


class Heartbeat:
    """Sends a heartbeat every interval; reports when it has failed for too long, before other workers may act on it.

    Not a component of the loop: it has its own thread and connection. If the process crashes, the heartbeats stop, which
    is how other workers notice. A lost connection is reopened at the next heartbeat; one that does not answer is closed
    while there is time for another attempt. One per worker: two may not overlap.
    """

    def __init__(
        self,
        engine: Engine,
        model: type[JobMixin[Any]],
        identity: Identity,
        *,
        interval: timedelta,
        heartbeat_timeout: timedelta,
        on_endangered: Callable[[timedelta], None],
        on_drain: Callable[[], object] = lambda: None,
        progress: Callable[[], dict[str, Any]] = dict,
        stuck_threads: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._heartbeat = leases.heartbeat(model)
        self._forget = leases.forget_worker(model)
        self._identity = identity
        self._interval = interval.total_seconds()
        # One interval before `heartbeat_timeout`, so that the attempts have stopped by then.
        self._patience = heartbeat_timeout.total_seconds() - self._interval
        self._on_endangered = on_endangered
        self._on_drain = on_drain
        self._progress = progress
        self._stuck_threads = stuck_threads
        self._asked_to_drain = False
        self._clock = clock
        self._state = WorkerState.RUNNING
        self._connection: Connection | None = None
        self._driver: Any = None
        self._asked: float | None = None
        """When the heartbeat that is waiting for the server's answer was sent; None without one."""
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="sa_jobqueue heartbeat", daemon=True)
        self._last = clock()
        self.last_active = self._last
        """When the thread last completed an iteration, successful or not."""
        self._is_reported = False
        self._late: float | None = None
        """Seconds between the last two heartbeats, if so many that other workers may have taken over; None once reported."""

    @property
    def silent(self) -> timedelta:
        """The time since the last acknowledged heartbeat was sent."""
        return timedelta(seconds=self._clock() - self._last)

    @property
    def last(self) -> float:
        """When the last acknowledged heartbeat was sent, by this clock."""
        return self._last

    @property
    def is_safe(self) -> bool:
        """Whether the last heartbeat is recent enough to start attempts."""
        return self._clock() - self._last < self._patience

    def allows(self, since: float) -> bool:
        """Whether attempts may start: a heartbeat that was sent after `since`, on this clock, is recent enough."""
        return self.is_safe and self.last > since

    def start(self) -> None:
        """Register the worker with a first heartbeat, then continue in the thread.

        Raises: the database's error if the first heartbeat fails.
        """
        self.send()
        self._thread.start()

    def announce(self, state: WorkerState) -> None:
        """Change the worker's state and send a heartbeat now."""
        self._state = state
        self._wake.set()

    def announce_concurrency(self, concurrency: int) -> None:
        """Change the worker's concurrency and send a heartbeat now."""
        self._identity = replace(self._identity, concurrency=concurrency)
        self._wake.set()

    def hurry(self) -> None:
        """Send the next heartbeat now: it may find a request."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread and delete the worker's row, unless it still holds jobs. Blocks briefly.

        If the server does not answer, this takes at most twice `heartbeat_timeout`; the row then goes stale.
        """
        self._stop = True
        self._wake.set()
        stopped = threading.Event()
        # The lease guard no longer runs, so unanswered heartbeats are handled here.
        watch = threading.Thread(target=self._watch, args=(stopped,), name="sa_jobqueue heartbeat stop", daemon=True)
        watch.start()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * (self._patience + self._interval))
        if not self._thread.is_alive():
            with suppress(DBAPIError):  # the row goes stale instead, and is deleted later
                self._ask(self._forget, {"worker_id": self._identity.id})
            self._disconnect()
        stopped.set()
        watch.join()
        self._engine.dispose()

    def send(self) -> None:
        """Write one heartbeat. It counts from when it was sent, because the server cannot have stamped it earlier.

        `on_drain` is called once, in this thread, by the heartbeat that finds a request to stop.
        """
        sent = self._clock()
        asked_at = self._ask(self._heartbeat, self._parameters()).scalar_one()
        # After a pause of the whole process this thread may continue before the loop, which then would notice nothing.
        if sent - self._last >= self._patience and not self._is_reported:
            self._late = sent - self._last
        self._last = sent
        self._is_reported = False
        if asked_at is not None and not self._asked_to_drain:
            self._asked_to_drain = True
            self._on_drain()

    def check(self) -> None:
        """Report once that the lease is in danger; close the connection of a heartbeat that is not answered.

        Called from the loop, because a heartbeat may hang in its own thread.
        """
        self._give_up_unanswered()
        silent = self._clock() - self._last
        if silent >= self._patience and not self._is_reported:
            self._is_reported = True
            self._on_endangered(timedelta(seconds=silent))
        elif (late := self._late) is not None:
            self._late = None
            self._on_endangered(timedelta(seconds=late))

    def _run(self) -> None:
        self._wake.wait(self._interval)
        while not self._stop:
            self.last_active = self._clock()
            self._wake.clear()
            try:
                self.send()
                rest = self._interval
            except DBAPIError:
                self._disconnect()
                rest = self._interval / 5
            self._wake.wait(rest)

    def _parameters(self) -> dict[str, Any]:
        mine = self._identity
        return {
            "id": mine.id,
            "name": mine.name,
            "host": mine.host,
            "pid": mine.pid,
            "version": mine.version,
            "queues": mine.queues,
            "job_types": mine.job_types,
            "concurrency": mine.concurrency,
            "state": self._state.value,
            "selectors": mine.selectors,
            "type_slots": mine.type_slots,
            "progress": self._progress() or None,
            "stuck_threads": self._stuck_threads(),
        }

    def _ask(self, statement: Executable, parameters: dict[str, Any]) -> CursorResult[Any]:
        connection = self._connected()
        self._asked = self._clock()
        try:
            return connection.execute(statement, parameters)
        finally:
            self._asked = None

    def _give_up_unanswered(self) -> None:
        """Close the connection when its answer is so late that only a heartbeat on a new one can still be in time."""
        asked, driver = self._asked, self._driver
        if asked is not None and driver is not None and self._clock() - asked >= self._patience / 2:
            hang_up(driver)

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._interval / 5):
            self._give_up_unanswered()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            self._driver = self._connection.connection.driver_connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            connection.invalidate()
            connection.close()


class LeaseGuard(Component):
    """Checks, on the loop, that the thread's heartbeats succeed. Woken by its timer only; restarted after a crash."""

    name = "lease guard"

    def __init__(self, heartbeat: Heartbeat, *, interval: timedelta) -> None:
        self._heartbeat = heartbeat
        self._rest = interval.total_seconds() / 5

    async def run(self) -> None:
        """Check until cancelled. After a pause of the whole process, this first detects the missing heartbeats."""
        while True:
            self._heartbeat.check()
            await asyncio.sleep(self._rest)
