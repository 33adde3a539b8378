"""Receives notifications, so that an idle worker starts a new job within milliseconds.

A notification is a hint. Any role that may connect to the database can send one, to any channel, with any payload and as
often as it likes. So a notification decides nothing: each leads to a read of the database, which decides. And the number of
reads is bounded: notifications faster than a channel's `Throttle` allows are passed on together.

| channel | payload | leads to | at most |
|---|---|---|---|
| `due` | a queue | a claim of the worker's own queues; others are ignored | 200 claims a second |
| `lost` | a job's id | a check of its attempt, if it runs here | 10 reads a second |
| `unblock` | none | a search for ended chains whose dependants are still blocked | 100 a second |
| `rules` | none | a read of settings, one of schedules, and a heartbeat | 10 of each a second |

A further channel, `ended`, is for those who wait for a chain (`sa_jobqueue.waiting`): a read of that chain, 20 a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from sa_jobqueue.db.connections import Connections
from sa_jobqueue.db.timeouts import answered_within
from sa_jobqueue.layout import Layout
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.signals import Hints, Signals

QUIET_SECONDS = 20.0
"""A connection that has been quiet for this long is checked with a statement."""

BURST: Final = 0.2
"""Seconds' worth of notifications that a channel passes on without delay after a pause: ordinary traffic never waits."""
MOST_PAYLOADS: Final = 1000
"""Maximum number of distinct payloads that are kept while they wait; with more, anything may have changed."""


class Throttle:
    """Passes on the payloads of one channel: immediately after a pause, otherwise together every `interval` seconds.

    The generic cell rate algorithm: one call per interval, with a burst of `BURST` seconds' worth.
    """

    def __init__(self, call: Callable[[Hints], None], *, interval: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._interval = interval
        self._next = 0.0
        self._payloads: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, payload: str) -> None:
        """Pass a payload on, now or together with later ones."""
        now = self._loop.time()
        if self._timer is None and now >= self._next:
            self._pass_on([payload])
            return
        if len(self._payloads) <= MOST_PAYLOADS:
            self._payloads[payload] = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._next, self._flush)

    def close(self) -> None:
        """Drop what is waiting."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._payloads = None, {}

    def _flush(self) -> None:
        self._timer = None
        payloads, self._payloads = self._payloads, {}
        self._pass_on(None if len(payloads) > MOST_PAYLOADS else list(payloads))

    def _pass_on(self, payloads: Hints) -> None:
        self._next = max(self._next, self._loop.time() - BURST) + self._interval
        self._call(payloads)


class Listener(Component):
    """LISTENs on a dedicated connection and passes notifications on as signals.

    A crash loses notifications, which costs latency up to the poll interval, never a job; after every (re)connect it sends
    each signal once, for what was missed. Two may overlap.
    """

    name = "listener"

    def __init__(self, connections: Connections, layout: Layout, signals: Signals) -> None:
        self._connections, self._signals = connections, signals
        self._lost, self._unblock = layout.channel("lost"), layout.channel("unblock")
        self._channels = {
            layout.channel("rules"): Throttle(lambda _: signals.rules_changed(), interval=0.1),
            layout.channel("due"): Throttle(signals.due, interval=0.005),
            self._lost: Throttle(signals.suspected, interval=0.1),
            self._unblock: Throttle(lambda _: signals.chains_ended(), interval=0.01),
        }
        self.listening = asyncio.Event()
        """Set while notifications arrive."""
        self.last_active = time.monotonic()
        """When it last tried to connect, or knew that the connection works."""

    async def run(self) -> None:
        """Listen until cancelled or disconnected; the supervisor restarts it."""
        self.last_active = time.monotonic()
        connection = await self._connections.listen()
        try:
            with answered_within(connection, self._connections.patience):
                for channel in self._channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self.listening.set()
            self._signals.due(None)
            self._signals.suspected(None)
            self._signals.rules_changed()
            self._signals.chains_ended()
            while True:
                self.last_active = time.monotonic()
                await self._hear(connection)
                with answered_within(connection, self._connections.patience):
                    await connection.execute("SELECT 1")
        finally:
            self.listening.clear()
            for throttle in self._channels.values():
                throttle.close()
            await connection.close()

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        async for note in connection.notifies(timeout=QUIET_SECONDS):
            if (throttle := self._channels.get(note.channel)) is not None:
                throttle.add(note.payload)
            if note.channel == self._lost:
                self._channels[self._unblock].add("")  # it ran here, and no worker wrote its result
