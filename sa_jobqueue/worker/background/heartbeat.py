"""Sends the worker's heartbeats from a dedicated thread, so that a handler that blocks the event loop loses no lease.

Each is a tick: one statement that writes the heartbeat and asks whether there is anything to do, for all components.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Engine, Executable
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.db.splitting import sqlstate
from sa_jobqueue.db.timeouts import hang_up
from sa_jobqueue.statements import leases, ticks
from sa_jobqueue.types import WorkerState
from sa_jobqueue.worker.quarantine import FORGOTTEN
from sa_jobqueue.worker.shared import Shared, version_parameters
from sa_jobqueue.worker.signals import TickResult

IDLE_SHARE: Final = 15
"""An idle worker ticks after one part in so many of the time for which it has been idle."""
IDLE_MOST: Final = 45.0
"""Maximum seconds between two ticks of an idle worker, unless its heartbeat interval is longer."""
RARELY: Final = 12
"""Ticks between two that look for what happens rarely: jobs and workers left behind, unhandled job types."""


_FIELDS: Final = [field.name for field in fields(TickResult)]


def tick_after(interval: float, idle_for: float) -> float:
    """Return how many seconds pass before the next tick of a worker that has been idle for some."""
    return max(interval, min(idle_for / IDLE_SHARE, IDLE_MOST))


class Heartbeat:
    """Sends a heartbeat every interval; reports when it has failed for too long, before other workers may act on it.

    Not a component of the loop: it has its own thread and connection. If the process crashes, the heartbeats stop, which
    is how other workers notice. A lost connection is reopened at the next heartbeat; one that does not answer is closed
    while there is time for another attempt. One per worker: two may not overlap.

    `report`: returns columns of the worker's row that differ from its identity, see `leases.heartbeat`.
    """

    def __init__(
        self,
        shared: Shared,
        engine: Engine,
        *,
        on_endangered: Callable[[timedelta], None],
        on_drain: Callable[[], object] = lambda: None,
        report: Callable[[], dict[str, Any]] = dict,
        idle_for: Callable[[], float] = lambda: 0.0,
        snapshot: Callable[[float], tuple[str, Sequence[str]] | None] = lambda next_tick_in: None,
        on_answer: Callable[[TickResult], object] = lambda answer: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, model, heartbeat_timeout = engine, shared.model, shared.options.heartbeat_timeout
        self._tick, self._heartbeat = ticks.tick(model), leases.heartbeat(model)
        self._forget = leases.forget_worker(model)
        self._identity = shared.identity
        self._interval = shared.options.heartbeat_interval.total_seconds()
        # One interval before `heartbeat_timeout`, so that the attempts have stopped by then.
        self._patience = heartbeat_timeout.total_seconds() - self._interval
        self._on_endangered = on_endangered
        self._on_drain = on_drain
        self._report, self._idle_for, self._snapshot, self._on_answer = report, idle_for, snapshot, on_answer
        self._timeout = heartbeat_timeout
        self._count = 0
        self._pause = 0.0
        """By how many seconds longer than an interval the next heartbeat may take, as the worker's row has it."""
        self._asked_to_drain = False
        self._clock = clock
        self._connection: Connection | None = None
        self._driver: Any = None
        self._asked_at: float | None = None
        """When the heartbeat that is waiting for the server's answer was sent; None without one."""
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="sa_jobqueue heartbeat", daemon=True)
        self._last = clock()
        self.last_active = self._last
        """When the thread last completed an iteration, successful or not."""
        self.failure: DBAPIError | None = None
        """The error of the last heartbeat; None if it was acknowledged."""
        self._is_reported = False
        self._late: float | None = None
        """Seconds between the last two heartbeats, if so many that other workers may have taken over; None once reported."""

    @property
    def silent(self) -> timedelta:
        """The time since the last acknowledged heartbeat was sent."""
        return timedelta(seconds=self._clock() - self._last)

    @property
    def is_safe(self) -> bool:
        """Whether the last heartbeat is recent enough to start attempts."""
        return self._clock() - self._last < self._patience + self._pause

    def allows(self, since: float) -> bool:
        """Whether attempts may start: a heartbeat that was sent after `since`, on this clock, is recent enough."""
        return self.is_safe and self._last > since

    def start(self) -> None:
        """Register the worker with a first heartbeat, then continue in the thread.

        Raises: the database's error if the first heartbeat fails.
        """
        self.send()
        self._thread.start()

    def hurry(self) -> None:
        """Send the next heartbeat now: it may find a request, or has a change to report."""
        self._wake.set()

    def resume(self) -> None:
        """Send the next heartbeat now if the worker has announced a pause: it is idle no more."""
        if self._pause:
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

    def send(self) -> float:
        """Write one heartbeat; return after how many seconds the next is due.

        It counts from when it was sent, because the server cannot have stamped it earlier. `on_drain` is called once, in
        this thread, by the heartbeat that finds a request to stop.
        """
        sent = self._clock()
        next_tick_in = tick_after(self._interval, self._idle_for())
        drain_requested_at, answer = self._send(next_tick_in)
        # After a pause of the whole process this thread may continue before the loop, which then would notice nothing.
        if sent - self._last >= self._patience + self._pause and not self._is_reported:
            self._late = sent - self._last
        self._last, self._pause = sent, next_tick_in - self._interval
        self.failure = None
        self._is_reported = False
        if drain_requested_at is not None and not self._asked_to_drain:
            self._asked_to_drain = True
            self._on_drain()
        self._on_answer(answer)
        if answer.lost_in is not None and answer.lost_in > 0:  # not all workers at once
            next_tick_in = min(next_tick_in, answer.lost_in + random.uniform(0.01, min(0.5, 0.1 * self._interval)))
        return next_tick_in

    def _send(self, next_tick_in: float) -> tuple[Any, TickResult]:
        snapshot = self._snapshot(next_tick_in)
        parameters = asdict(self._identity) | {"state": WorkerState.RUNNING.value} | self._report()
        parameters |= {
            "heartbeat_pause": timedelta(seconds=next_tick_in - self._interval),
            "worker_id": self._identity.id,
            "types": self._identity.job_types,
            **version_parameters(self._identity.type_versions),
            "ttl": self._timeout,
            "xmax": snapshot and snapshot[0],
            "xip": list(snapshot[1]) if snapshot else [],
            "thoroughly": self._count % RARELY == 0,
            "after": self._timeout,
            "gone_after": 20 * self._timeout + timedelta(minutes=1),
            "forgotten_after": FORGOTTEN,
        }
        self._count += 1
        try:
            row = self._ask(self._tick, parameters).one()
        except DBAPIError as error:
            if error.connection_invalidated or sqlstate(error) is None:
                raise
            # What the tick reads beside the worker's row must not cost the lease.
            return self._ask(self._heartbeat, parameters).scalar_one(), TickResult()
        return row[0], TickResult(**dict(zip(_FIELDS, row[1:], strict=True)))

    def check(self) -> None:
        """Report once that the lease is in danger; close the connection of a heartbeat that is not answered.

        Called on the loop, because a heartbeat may hang in its own thread. After a pause of the whole process, this first
        detects the missing heartbeats.
        """
        self._give_up_unanswered()
        silent = self._clock() - self._last
        if silent >= self._patience + self._pause and not self._is_reported:
            self._is_reported = True
            self._on_endangered(timedelta(seconds=silent))
        elif (late := self._late) is not None:
            self._late = None
            self._on_endangered(timedelta(seconds=late))

    def _run(self) -> None:
        self._wake.wait(self._interval)  # after the first
        while not self._stop:
            self.last_active = self._clock()
            self._wake.clear()
            try:
                next_tick_in = self.send()
            except DBAPIError as error:
                self.failure = error
                # Without its answer it is unknown which pause the row has.
                self._pause = 0.0
                self._disconnect()
                next_tick_in = self._interval / 5
            self._wake.wait(next_tick_in)

    def _ask(self, statement: Executable, parameters: dict[str, Any]) -> CursorResult[Any]:
        connection = self._connected()
        self._asked_at = self._clock()
        try:
            with connection.begin():
                return connection.execute(statement, parameters)
        finally:
            self._asked_at = None

    def _give_up_unanswered(self) -> None:
        """Close the connection when its answer is so late that only a heartbeat on a new one can still be in time."""
        asked_at, driver = self._asked_at, self._driver
        if asked_at is not None and driver is not None and self._clock() - asked_at >= self._patience / 2:
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
