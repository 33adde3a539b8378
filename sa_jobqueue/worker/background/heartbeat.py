"""Says that the worker lives, from a thread of its own, so that a handler that blocks the event loop costs no lease."""

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
from sa_jobqueue.registry.handlers import JobQueue
from sa_jobqueue.statements import leases
from sa_jobqueue.types import WorkerState
from sa_jobqueue.version import __version__
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.options import WorkerOptions


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker's row says of it."""

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
    """Return what a new worker says of itself, with an id that no other has."""
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
        selectors={queue: selector.told for queue, selector in jobs.selectors.items() if queue in options.limits},
        type_slots={kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None},
    )


class Heartbeat:
    """Beats every interval; when it could not for too long, says so before others may act on it.

    Not a component of the loop: it has a thread and a connection. A crash of the process stops it, and that is its
    message. A lost connection is opened again at the next beat, one on which a beat is not answered is given up while
    there is time for another. Two may not overlap: one a worker.
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
        on_drain: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._beat = leases.beat(model)
        self._forget = leases.forget_worker(model)
        self._identity = identity
        self._interval = interval.total_seconds()
        # One interval before the others' patience ends, so that attempts have stopped when it does.
        self._patience = heartbeat_timeout.total_seconds() - self._interval
        self._on_endangered = on_endangered
        self._on_drain = on_drain
        self._asked_to_drain = False
        self._clock = clock
        self._state = WorkerState.RUNNING
        self._connection: Connection | None = None
        self._driver: Any = None
        self._asked: float | None = None
        """When what waits for the server's answer now was sent."""
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="sa_jobqueue heartbeat", daemon=True)
        self._last = clock()
        self.turned = self._last
        """When the thread last went round, whatever came of it."""
        self._told = False
        self._late: float | None = None
        """How many seconds a beat came after the one before, so late that others may have taken over; until it is told."""

    @property
    def silent(self) -> timedelta:
        """How long ago the last beat was sent that the database answered."""
        return timedelta(seconds=self._clock() - self._last)

    @property
    def last(self) -> float:
        """When the last heartbeat was sent that the database answered, by this clock."""
        return self._last

    @property
    def is_safe(self) -> bool:
        """Whether the last beat is fresh enough for attempts to be started."""
        return self._clock() - self._last < self._patience

    def start(self) -> None:
        """Register the worker with a first beat, then go on in the thread.

        Raises: what the database raises, when the first beat fails.
        """
        self.beat()
        self._thread.start()

    def announce(self, state: WorkerState) -> None:
        """Change the state that the next beat tells, and make that beat now."""
        self._state = state
        self._wake.set()

    def announce_concurrency(self, concurrency: int) -> None:
        """Change the concurrency that the next beat tells, and make that beat now."""
        self._identity = replace(self._identity, concurrency=concurrency)
        self._wake.set()

    def hurry(self) -> None:
        """Make the next beat now: it may find that somebody asked for something."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread and remove the worker's row, unless jobs still hang on it. Blocks for a moment.

        Where the server does not answer, for as long as the others are patient, at most twice: the row goes stale then.
        """
        self._stop = True
        self._wake.set()
        stopped = threading.Event()
        # By now nobody on the loop looks after what is not answered.
        watch = threading.Thread(target=self._watch, args=(stopped,), name="sa_jobqueue heartbeat stop", daemon=True)
        watch.start()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * (self._patience + self._interval))
        if not self._thread.is_alive():
            with suppress(DBAPIError):  # the row goes stale instead, and is swept
                self._ask(self._forget, {"worker_id": self._identity.id})
            self._disconnect()
        stopped.set()
        watch.join()
        self._engine.dispose()

    def beat(self) -> None:
        """Write one beat. It counts from when it was sent: the server cannot have stamped it earlier.

        `on_drain` is called, once, by the beat that finds the worker asked to stop: in this thread.
        """
        sent = self._clock()
        asked_at = self._ask(self._beat, self._parameters()).scalar_one()
        # After a pause of the whole process this thread may go on before the loop does, which then finds all well.
        if sent - self._last >= self._patience and not self._told:
            self._late = sent - self._last
        self._last = sent
        self._told = False
        if asked_at is not None and not self._asked_to_drain:
            self._asked_to_drain = True
            self._on_drain()

    def check(self) -> None:
        """Say once that the lease is in danger, when it is; give up a beat that is not answered.

        Called from the loop: a beat may hang in its own thread.
        """
        self._give_up_unanswered()
        silent = self._clock() - self._last
        if silent >= self._patience and not self._told:
            self._told = True
            self._on_endangered(timedelta(seconds=silent))
        elif (late := self._late) is not None:
            self._late = None
            self._on_endangered(timedelta(seconds=late))

    def _run(self) -> None:
        self._wake.wait(self._interval)
        while not self._stop:
            self.turned = self._clock()
            self._wake.clear()
            try:
                self.beat()
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
        }

    def _ask(self, statement: Executable, parameters: dict[str, Any]) -> CursorResult[Any]:
        connection = self._connected()
        self._asked = self._clock()
        try:
            return connection.execute(statement, parameters)
        finally:
            self._asked = None

    def _give_up_unanswered(self) -> None:
        """End the connection when its answer is so late that a beat on another one may still come in time."""
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
    """Watches, on the loop, that the beats of the thread arrive. Woken by its rest alone; a crash is restarted."""

    name = "lease guard"

    def __init__(self, heartbeat: Heartbeat, *, interval: timedelta) -> None:
        self._heartbeat = heartbeat
        self._rest = interval.total_seconds() / 5

    async def run(self) -> None:
        """Check until cancelled. First thing after a pause of the whole process, it finds the beats missing."""
        while True:
            self._heartbeat.check()
            await asyncio.sleep(self._rest)
