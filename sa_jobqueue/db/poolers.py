"""Workers behind a connection pooler that lends out server sessions a transaction at a time, such as PgBouncer.

There a session's state does not last: the settings that a connection asks for when it is opened are refused or forgotten,
LISTEN hears nothing, and a prepared statement is not there the next time. A worker finds out when it starts, by a setting of
its own that should have reached the server. Then its guards travel with each transaction, it prepares nothing, and it
listens on a connection of its own (`listen_url`) or not at all.

Source: PgBouncer's manual, "SQL feature map for pooling modes", and its `ignore_startup_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.db.session_settings import SETTINGS, TIMEOUTS, set_locally
from sa_jobqueue.statements.claims import GUARDS

MARK: Final = "sa_jobqueue.direct"
"""A setting that nobody else makes: where it has the value that we gave it, the server's session is ours alone."""

_BY_POOLER: Final = {"client_encoding", "idle_session_timeout"}
"""The first is passed on by every pooler, and kept for each of its clients; the second is not the transaction's."""
_SET_GUARDS: Final = set_locally(
    {name: value for name, value in (GUARDS | SETTINGS | TIMEOUTS).items() if name not in _BY_POOLER}
)


async def is_pooled(arguments: Mapping[str, Any]) -> bool:
    """Say whether connections made with these arguments come to a session of their own, or to one that is lent to many.

    Opens one connection, or two. Some poolers refuse `options`, others drop them without a word.
    Raises: psycopg.OperationalError when there is no connection either way.
    """
    mark = f"-c {MARK}=yes"
    try:
        connection = await psycopg.AsyncConnection.connect(**{**arguments, "options": mark}, autocommit=True)
    except psycopg.OperationalError:
        plain = {name: value for name, value in arguments.items() if name != "options"}
        await (await psycopg.AsyncConnection.connect(**plain, autocommit=True)).close()
        return True
    async with connection:
        cursor = await connection.execute(f"SELECT current_setting('{MARK}', true)", prepare=False)
        row = await cursor.fetchone()
    return row is None or row[0] != "yes"


class GuardedCursor(psycopg.AsyncCursor[Any]):
    """A cursor that sets the plan guards for the one transaction its statement runs in.

    A statement of its own is a transaction of three messages here, begin with guards, statement, commit; the first
    statement of a longer one is preceded by the guards.
    """

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Execute one statement, as psycopg does, under the guards."""
        connection = self.connection
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            return await super().execute(query, params, **options)
        plain = psycopg.AsyncCursor(connection)
        if not connection.autocommit:
            await plain.execute(_SET_GUARDS)
            return await super().execute(query, params, **options)
        await plain.execute(f"BEGIN; {_SET_GUARDS}")
        try:
            await super().execute(query, params, **options)
        except Exception:
            with suppress(psycopg.Error):
                await plain.execute("ROLLBACK")
            raise
        await plain.execute("COMMIT")
        return self


class GuardedThreadCursor(psycopg.Cursor[Any]):
    """The same for a thread's connection, on which every statement is a transaction of its own."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Execute one statement, as psycopg does, under the guards."""
        if self.connection.info.transaction_status is not TransactionStatus.IDLE or not self.connection.autocommit:
            return super().execute(query, params, **options)
        plain = psycopg.Cursor(self.connection)
        plain.execute(f"BEGIN; {_SET_GUARDS}")
        try:
            super().execute(query, params, **options)
        except Exception:
            with suppress(psycopg.Error):
                plain.execute("ROLLBACK")
            raise
        plain.execute("COMMIT")
        return self


def prepare_nothing(engine: Engine | AsyncEngine) -> None:
    """Make an engine's connections prepare no statements from their next checkout on; psycopg's only."""
    pool = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if pool.dialect.driver not in {"psycopg", "psycopg_async"} or event.contains(pool, "checkout", _prepare_nothing):
        return
    event.listen(pool, "checkout", _prepare_nothing)


def _prepare_nothing(connection: Any, record: Any, proxy: Any) -> None:
    getattr(connection, "driver_connection", connection).prepare_threshold = None
