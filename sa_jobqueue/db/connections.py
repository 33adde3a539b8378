"""The connections a worker opens for itself, beside the application's own engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar
from weakref import WeakSet

import psycopg
from sqlalchemy import URL, Dialect, Engine, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import greenlet_spawn

from sa_jobqueue.db.forks import cut_off_when_forked
from sa_jobqueue.db.poolers import GuardedCursor, guard_transactions, is_pooled
from sa_jobqueue.db.sessions import GUARDS, SETTINGS, TIMEOUTS, application_name, overridden, own_options, startup_arguments
from sa_jobqueue.db.timeouts import AnsweredConnection, QuietConnection, answered_within
from sa_jobqueue.db.urls import for_psycopg, shown_url
from sa_jobqueue.errors import DatabaseUnavailableError, InvalidOptionError
from sa_jobqueue.errors.drivers import RAW_ERRORS
from sa_jobqueue.payloads import read_json

POOL: Final = 7
"""Connections of the engine that a worker's components share."""
STEPS_POOL: Final = 4
"""Connections of the engine that records steps."""
OWN_CONNECTIONS: Final = POOL + STEPS_POOL + 2
"""The most connections that a worker opens for itself, one for heartbeats and one for notifications included. Handlers'
sessions take one each."""

C = TypeVar("C", bound=psycopg.AsyncConnection[Any])


class Connections:
    """Makes a worker's own connections from the application's URL.

    They use psycopg whatever driver the application uses, carry the plan guards and the settings of `sessions`,
    notice a dead peer, and a silent one, within `patience`, and show up in `pg_stat_activity` under the worker's name.
    Behind a connection pooler guards and settings travel with each transaction, and LISTEN needs `listen_url`.

    `application`: the dialect of the application's engine, whose `do_connect` listeners are called for each connection.
    """

    def __init__(
        self,
        url: URL,
        *,
        worker_name: str,
        patience: timedelta,
        connect_args: Mapping[str, Any] | None = None,
        listen_url: URL | None = None,
        application: Dialect | None = None,
    ) -> None:
        self._url = for_psycopg(url, option="engine")
        self._listen_url = for_psycopg(listen_url, option="listen_url") if listen_url else None
        self.is_pooled = False
        """Whether it is known that the URL leads to a pooler."""
        self.patience = patience.total_seconds()
        # A claim under a limit holds its lock for a transaction: where this machine vanishes meanwhile, no longer than that.
        idle = {"idle_in_transaction_session_timeout": str(max(1000, round(1000 * self.patience)))}
        driver_arguments = dict(connect_args or {})
        self._own_options: str = driver_arguments.pop("options", None) or own_options(self._url)
        self._arguments: dict[str, Any] = {
            "application_name": application_name(worker_name),
            **noticing_death(patience),
            **driver_arguments,
            **startup_arguments(self._own_options, {**GUARDS, **SETTINGS, **TIMEOUTS, **idle}),
        }
        self._application = application
        self._is_closed = False
        self._opening: set[asyncio.Task[Any]] = set()
        self._opened: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()

    @property
    def can_listen(self) -> bool:
        """Whether there is a way to the server on which notifications arrive."""
        return self._listen_url is not None or not self.is_pooled

    async def find_pooler(self) -> None:
        """Find out whether the URL leads to a pooler, before anything is opened.

        A server that does not answer is reported by the first component that connects. Raises: InvalidOptionError if
        `listen_url` leads to a pooler as well.
        """
        with suppress(psycopg.Error):
            if self._listen_url is not None and await is_pooled(await self._prepared(self._to(self._listen_url))):
                raise InvalidOptionError("listen_url", "leads to a connection pooler as well; pass the server's own address")
        with suppress(psycopg.Error):
            self.is_pooled = await is_pooled(await self._prepared(self._to(self._url)))
        if self.is_pooled:
            self._arguments |= {"options": self._own_options, "prepare_threshold": None}

    def engine(self, size: int) -> AsyncEngine:
        """Return an engine of at most `size` connections, each statement its own transaction."""
        return create_async_engine(
            self._url,
            isolation_level="AUTOCOMMIT",
            pool_size=size,
            max_overflow=0,
            connect_args=self._arguments | {"async_creator_fn": self._open},
            execution_options={RAW_ERRORS: True},
            # Values of the application's own columns are written as its own engine writes them.
            json_serializer=getattr(self._application, "_json_serializer", None),
            json_deserializer=read_json,
            # The server may have been replaced since the last outage: never answer from what was learnt of the old one.
            pool_recycle=1800,
        )

    def thread_engine(self) -> Engine:
        """Return an engine for a thread of the worker's own; one connection, opened when used.

        Begin a transaction for each statement: behind a pooler it sets the guards, elsewhere it costs nothing.
        """
        engine = create_engine(
            self._url,
            isolation_level="READ COMMITTED" if self.is_pooled else "AUTOCOMMIT",
            poolclass=NullPool,
            connect_args=self._arguments,
            execution_options={RAW_ERRORS: True},
        )
        if self._application is not None:
            call_connect_listeners(self._application, engine)
        if self.is_pooled:
            guard_transactions(engine)
        else:
            event.listen(engine, "connect", _undo_environment)
        event.listen(engine, "connect", lambda connection, record: cut_off_when_forked(connection))
        return engine

    async def _open(self, *_: str, **arguments: Any) -> AnsweredConnection:
        # The positional one is the conninfo of an empty URL, which is empty as well.
        connection = await self._known(AnsweredConnection, arguments)
        connection.patience = self.patience
        if self.is_pooled:
            connection.cursor_factory = GuardedCursor
        return connection

    async def listen(self) -> psycopg.AsyncConnection[Any]:
        """Open a connection outside every pool, to LISTEN on."""
        arguments = self._to(self._listen_url or self._url) | {"autocommit": True}
        return await self._known(QuietConnection, arguments)

    async def close(self, within: timedelta) -> None:
        """Close every connection opened so far, those included that are being opened, or that a pool has lost.

        One that is not open `within` that time is given up. From now on none is opened: an attempt that did not stop may
        still ask for one.
        """
        self._is_closed = True
        if self._opening:
            await asyncio.wait(self._opening, timeout=within.total_seconds())
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._opened):
            await connection.close()

    async def _known(self, kind: type[C], arguments: Mapping[str, Any]) -> C:
        if self._is_closed:
            raise psycopg.OperationalError("the worker has stopped and opens no more connections")
        # In a task of its own: who asked may be cancelled meanwhile, and what is half open then would stay open until
        # the garbage collector finds it. SQLAlchemy's pools do not know of such a connection either.
        opening: asyncio.Task[C] = asyncio.create_task(self._connected(kind, arguments))
        self._opening.add(opening)
        opening.add_done_callback(self._remember)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            unused = asyncio.create_task(_close_unused(opening))
            self._opening.add(unused)
            unused.add_done_callback(self._opening.discard)
            raise

    async def _connected(self, kind: type[C], arguments: Mapping[str, Any]) -> C:
        connection = await kind.connect(**await self._prepared(arguments))
        if not self.is_pooled and (statement := overridden(connection)) is not None:
            try:
                with answered_within(connection, self.patience):
                    await connection.execute(statement)
                    await connection.commit()
            except BaseException:
                await connection.close()
                raise
        return connection

    def _remember(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled() and opening.exception() is None:
            self._opened.add(opening.result())
            cut_off_when_forked(opening.result())

    async def _prepared(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as the application's `do_connect` listeners change them, such as by a new access token."""
        prepared_arguments = dict(arguments)
        if self._application is not None and self._application.dispatch.do_connect:
            await asyncio.to_thread(
                _call_listeners, self._application, prepared_arguments
            )  # it may ask another service for the token
        return prepared_arguments

    def _to(self, url: URL) -> dict[str, Any]:
        # SQLAlchemy's own reading of the URL, several hosts included.
        arguments: dict[str, Any] = dict(create_engine(url).dialect.create_connect_args(url)[1])
        return arguments | self._arguments


async def close_idle(engine: AsyncEngine) -> None:
    """Close the connections of an engine that are not in use."""
    pool: Any = engine.pool

    # Not `dispose`: a connection that is in use now would return to a pool that nothing closes any more.
    def close() -> None:
        while pool.checkedin():
            pool._pool.get(False).close()
            pool._dec_overflow()

    await greenlet_spawn(close)


def call_connect_listeners(application: Dialect, engine: Engine) -> None:
    """Call the `do_connect` listeners of an application's engine for the connections of another engine as well."""
    if application.dispatch.do_connect:

        @event.listens_for(engine, "do_connect")
        def prepare(dialect: Dialect, record: object, arguments: list[Any], parameters: dict[str, Any]) -> None:
            _call_listeners(application, parameters)


def _call_listeners(application: Dialect, parameters: dict[str, Any]) -> None:
    for listener in application.dispatch.do_connect:
        if listener(application, None, [], parameters) is not None:
            raise InvalidOptionError(
                "engine",
                "has a `do_connect` listener that returns a connection, which a worker's own connections cannot use; have "
                "it change the parameters instead",
            )


def check_reachable(engine: Engine | AsyncEngine, connect_args: Mapping[str, Any]) -> None:
    """Refuse an engine whose URL is empty because a `creator` connects it. Raises: InvalidOptionError.

    An empty URL without one means libpq's environment (PGHOST, PGSERVICE, ...), which the worker's connections use too.
    """
    url, sync_engine = engine.url, engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    is_empty = not (url.host or url.database or url.query)
    creator = getattr(sync_engine.pool, "_creator", None)
    if is_empty and not connect_args and getattr(creator, "__qualname__", "") != "create_engine.<locals>.connect":
        raise InvalidOptionError(
            "engine",
            "connects by a `creator`, which a worker's own connections cannot use, and its URL is empty; put host and "
            "database into the URL, or pass `connect_args`",
        )


async def _close_unused(opening: asyncio.Task[Any]) -> None:
    with suppress(psycopg.Error, OSError):
        connection = await opening
        await connection.close()


def _undo_environment(connection: psycopg.Connection[Any], record: object) -> None:
    if (statement := overridden(connection)) is not None:
        connection.execute(statement)
        connection.commit()


def noticing_death(patience: timedelta) -> dict[str, Any]:
    """Return what psycopg needs so that a connection to a machine that is gone ends within about `patience`."""
    seconds = max(1, round(patience.total_seconds()))
    return {
        "connect_timeout": max(2, seconds),
        "keepalives_idle": seconds,
        "keepalives_interval": max(1, seconds // 3),
        "keepalives_count": 3,
        "tcp_user_timeout": seconds * 1000,
    }


def unavailable(error: DBAPIError, url: URL) -> DatabaseUnavailableError:
    """Return our error for one that means the database cannot be reached. The URL is shown without its passwords."""
    reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    return DatabaseUnavailableError(f"cannot use {shown_url(url)}: {reason}")
