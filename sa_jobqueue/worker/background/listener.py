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

Producers send `due` only while a worker is announced as idle: `announce`.

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
from sa_jobqueue.db.timeouts import answered_within, cancelled
from sa_jobqueue.policies.fairness import ANY_QUEUE
from sa_jobqueue.statements.notifications import announce_idle
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.shared import Part, Shared
from sa_jobqueue.worker.signals import Hints

QUIET_SECONDS = 600.0
"""A connection that has been quiet for this long is checked with a statement. TCP finds a peer that is gone, and a tick that
finds a job without a notification has it checked as well."""

BURST: Final = 0.2
"""Seconds' worth of notifications that a channel passes on without delay after a pause: ordinary traffic never waits."""
_WITHDRAW: Final = "SELECT pg_advisory_unlock_all()"
"""This connection holds no other locks."""
_TRIES: Final = 5
_COLLISION: Final = 0.001
"""Seconds until an announcement that met a producer's look is tried again."""
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
        """Drop waiting signals."""
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


class Listener(Part, Component):
    """LISTENs on a dedicated connection and passes notifications on as signals.

    A crash loses notifications, which costs latency up to the poll interval, never a job; after every (re)connect it sends
    each signal once, for missed notifications. Two may overlap. It also holds the announcement that this worker is idle,
    which ends with the connection.
    """

    name = "listener"

    def __init__(self, shared: Shared, connections: Connections) -> None:
        super().__init__(shared)
        self._connections, layout, signals = connections, self._model.__jobqueue__, shared.signals
        self._announce_idle = sql.SQL(announce_idle(self._model))
        self._queues = [*shared.identity.queues, ANY_QUEUE]
        self._asked = asyncio.Event()
        self._announcing: asyncio.Future[bool] | None = None
        self._withdraws = False
        self.is_announced = False
        """Whether producers notify this worker."""
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
                await self._hear_until_asked(connection)
                with answered_within(connection, self._connections.patience):
                    await self._answer(connection)
        finally:
            self.listening.clear()
            self.is_announced = self._withdraws = False
            self._announced(False)
            for throttle in self._channels.values():
                throttle.close()
            await connection.close()

    async def announce(self) -> bool:
        """Announce this worker as idle for its queues; return whether that was done now.

        The caller must look for jobs once more: from here on, producers notify of what they enqueue, but not of what they
        enqueued before.
        """
        if self.is_announced or not self.listening.is_set():
            return False
        if self._announcing is None:
            self._announcing = asyncio.get_running_loop().create_future()
        self._asked.set()
        return await asyncio.shield(self._announcing)

    def check(self) -> None:
        """Check the connection now: a notification may have been lost."""
        self._asked.set()

    def withdraw(self) -> None:
        """End the announcement soon: producers notify no more."""
        if self.is_announced:
            self.is_announced, self._withdraws = False, True
            self._asked.set()

    def _announced(self, is_announced: bool) -> None:
        announcing, self._announcing = self._announcing, None
        if announcing is not None:
            self.is_announced = is_announced
            announcing.set_result(is_announced)

    async def _answer(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Announce or withdraw, as asked; otherwise check the connection."""
        self._asked.clear()
        if self._withdraws:
            self._withdraws = False
            await connection.execute(_WITHDRAW)
        if self._announcing is None:
            await connection.execute("SELECT 1")
            return
        for _ in range(_TRIES):  # a producer that looks holds the lock for a moment
            cursor = await connection.execute(self._announce_idle, [self._queues])
            if await cursor.fetchone() == (True,):
                self._announced(True)
                return
            await connection.execute(_WITHDRAW)
            await asyncio.sleep(_COLLISION)
        self._announced(False)  # another session holds it: producers notify meanwhile

    async def _hear_until_asked(self, connection: psycopg.AsyncConnection[Any]) -> None:
        tasks = asyncio.create_task(self._hear(connection)), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(*tasks)
        hearing, _ = tasks
        if not hearing.cancelled():
            hearing.result()

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        async for note in connection.notifies(timeout=QUIET_SECONDS):
            if (throttle := self._channels.get(note.channel)) is not None:
                throttle.add(note.payload)
            if note.channel == self._lost:
                self._channels[self._unblock].add("")  # it ran here, and no worker wrote its result
