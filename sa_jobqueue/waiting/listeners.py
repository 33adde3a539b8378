"""Access to the database while waiting, and the connections that listen, which no pool of the application gives."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from contextvars import Context
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import URL, Engine, Executable, create_engine
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.db.sessions import SETTINGS
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.db.urls import for_psycopg
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.waiting.steps import Access, Answer

_RETRY_SECONDS: Final = 5.0
"""Before a connection to listen on is tried again."""

_log = logging.getLogger("sa_jobqueue.waiting")


class Blocking(Access):
    """Access from a thread. If it cannot listen, or the connection is lost, `rest` sleeps instead, and tries again."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine, self._channel = engine, channel
        self._payloads: frozenset[str] = frozenset()
        self._connection: psycopg.Connection[Any] | None = None
        self._retry_at = 0.0

    async def ask(self, statement: Executable, parameters: dict[str, Any]) -> Answer:
        """Run a statement in its own transaction; return its rows, or the error of an outage."""
        try:
            with self._engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                return connection.execute(statement, parameters).all()
        except (DBAPIError, OSError) as error:
            return error

    async def listen(self, payloads: frozenset[str]) -> None:
        """Listen for the ends of chains, if possible."""
        self._payloads = payloads
        try:
            self._connection = psycopg.connect(**_arguments(self._engine.url))
            self._connection.execute(_listening(self._channel))
        except (psycopg.Error, InvalidOptionError) as error:
            self._lose(error)

    async def rest(self, seconds: float, least: float) -> None:
        """Pause for a time, or until an end is notified, or a connection lost or restored: then the caller looks again."""
        time.sleep(least)  # noqa: ASYNC251 - no loop runs it
        seconds -= least
        if self._connection is None:
            deaf_seconds = self._retry_at - time.monotonic()
            if self._payloads and deaf_seconds <= 0:
                await self.listen(self._payloads)
            else:
                time.sleep(min(seconds, deaf_seconds) if self._payloads else seconds)  # noqa: ASYNC251
            return
        try:
            with closing(self._connection.notifies(timeout=seconds)) as notes:
                any(note.payload in self._payloads for note in notes)
        except psycopg.Error as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        _log_failure(error)
        self.close()
        self._retry_at = time.monotonic() + _RETRY_SECONDS

    def close(self) -> None:
        """Close the connection that listens."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class SharedListener:
    """An event loop's connection for notifications, shared by all waits on it, and reopened whenever it is lost."""

    def __init__(self, url: URL, channel: str) -> None:
        self._url, self._channel = url, channel
        self.waiting: dict[str, set[asyncio.Event]] = {}
        """Who waits, by chain."""
        self.tried = asyncio.Event()
        """Set once it is listening, or has failed to for now."""
        # In a context of its own: it outlives the caller that happened to come first.
        self.task = asyncio.create_task(self._run(), name="sa_jobqueue waiting", context=Context())

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._listen()
                except (psycopg.Error, InvalidOptionError) as error:
                    _log_failure(error)
                self._wake(*self.waiting)
                self.tried.set()
                await asyncio.sleep(_RETRY_SECONDS)
        except asyncio.CancelledError:
            # Not passed on: the task would keep the error, that the frames, and they a half-open connection, until the
            # next garbage collection. Only `listening_for` cancels this task, and it waits for the end.
            pass
        finally:
            self.tried.set()  # in any case, so that no caller waits for longer than a poll

    async def _listen(self) -> None:
        connection = await psycopg.AsyncConnection.connect(**_arguments(self._url))
        try:
            await connection.execute(_listening(self._channel))
            if self.tried.is_set():  # a reconnect: notifications sent meanwhile are lost, so have every caller poll
                self._wake(*self.waiting)
            self.tried.set()
            async with aclosing(connection.notifies()) as notes:
                async for note in notes:
                    self._wake(note.payload)
        finally:
            await connection.close()

    def _wake(self, *payloads: str) -> None:
        for payload in payloads:
            for event in self.waiting.get(payload, ()):
                event.set()


_listeners: Final[dict[tuple[asyncio.AbstractEventLoop, URL, str], SharedListener]] = {}


@asynccontextmanager
async def listening_for(url: URL, channel: str, payloads: frozenset[str]) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set when the end of one of the chains is notified; waits share the connection."""
    key = asyncio.get_running_loop(), url, channel
    listener = _listeners.get(key)
    if listener is None:
        listener = _listeners[key] = SharedListener(url, channel)
    notified = asyncio.Event()
    for payload in payloads:
        listener.waiting.setdefault(payload, set()).add(notified)
    try:
        await listener.tried.wait()
        yield notified
    finally:
        for payload in payloads:
            listener.waiting[payload].remove(notified)
            if not listener.waiting[payload]:
                del listener.waiting[payload]
        if not listener.waiting:
            del _listeners[key]
            await cancelled(listener.task)


def _arguments(url: URL) -> dict[str, Any]:
    # SQLAlchemy's own reading of the URL; psycopg's, whatever driver the application uses.
    url = for_psycopg(url)
    arguments = create_engine(url).dialect.create_connect_args(url)[1]
    ours = {"application_name": "sa_jobqueue waiting", "client_encoding": SETTINGS["client_encoding"]}
    return {**arguments, **ours, "connect_timeout": 5, "autocommit": True}


def _listening(channel: str) -> sql.Composed:
    return sql.SQL("LISTEN {}").format(sql.Identifier(channel))


def _log_failure(error: Exception) -> None:
    _log.warning("cannot listen for the ends of chains, they are looked for instead: %s", str(error).partition("\n")[0])
