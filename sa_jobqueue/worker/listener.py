"""Hears notifications, so that an idle worker starts a new job within milliseconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from sa_jobqueue.layout import Layout
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.connections import Connections
from sa_jobqueue.worker.silence import answered_within

QUIET_SECONDS = 20.0
"""A connection that has been quiet for so long is asked whether it still lives."""


class Listener(Component):
    """LISTENs on a connection of its own and calls back: `on_due(queue)`, `on_lost(job_id)`, `on_rules()`, `on_unblock()`.

    A crash loses notifications, which costs latency up to the poll interval, never a job; after every (re)connect
    everything is looked at once, for what was missed meanwhile. Two may overlap.
    """

    name = "listener"

    def __init__(
        self,
        connections: Connections,
        layout: Layout,
        *,
        on_due: Callable[[str | None], None],
        on_lost: Callable[[str], None],
        on_rules: Callable[[], None] = lambda: None,
        on_unblock: Callable[[], None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._due, self._lost, self._rules = layout.channel("due"), layout.channel("lost"), layout.channel("rules")
        self._on_due = on_due
        self._on_lost = on_lost
        self._on_rules = on_rules
        self._unblock = layout.channel("unblock")
        self._on_unblock = on_unblock
        self._freed = layout.channel("freed")
        self.on_freed: Callable[[str], None] = lambda limit: None
        """Called with the limit that has room again, as `Layout.channel` says."""
        self.listening = asyncio.Event()
        """Set while it hears."""
        self.turned = time.monotonic()
        """When it last tried to connect, or knew that it heard."""

    async def run(self) -> None:
        """Listen until cancelled or disconnected; the supervisor starts it again."""
        self.turned = time.monotonic()
        connection = await self._connections.listen()
        try:
            with answered_within(connection, self._connections.patience):
                for channel in (self._rules, self._due, self._lost, self._freed, self._unblock):
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self.listening.set()
            self._on_due(None)
            self._on_rules()
            self._on_unblock()
            while True:
                self.turned = time.monotonic()
                await self._hear(connection)
                with answered_within(connection, self._connections.patience):
                    await connection.execute("SELECT 1")
        finally:
            self.listening.clear()
            await connection.close()

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        async for note in connection.notifies(timeout=QUIET_SECONDS):
            if note.channel == self._due:
                self._on_due(note.payload)
            elif note.channel == self._lost:
                self._on_lost(note.payload)
                self._on_unblock()  # one that ran, and whose end no worker wrote
            elif note.channel == self._unblock:
                self._on_unblock()
            elif note.channel == self._freed:
                self.on_freed(note.payload)
            elif note.channel == self._rules:
                self._on_rules()
