"""Workers behind a connection pooler that assigns server sessions per transaction, such as PgBouncer.

There a session's state does not last: settings in the connection's options are refused or forgotten, LISTEN receives
nothing, and a prepared statement may be missing the next time. A worker detects this when it starts, by a setting that
should have reached the server. Then its guards travel with each transaction, it prepares nothing, and it listens on a
dedicated connection (`listen_url`) or not at all.
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

from sa_jobqueue.db.sessions import GUARDS, SETTINGS, TIMEOUTS, set_locally

MARK: Final = "sa_jobqueue.direct"
"""A setting that only this library uses: if it has our value, the server's session is ours alone."""

_BY_POOLER: Final = {"client_encoding", "idle_session_timeout"}
"""Every pooler passes the first on and keeps it for each client; the second does not apply within a transaction."""
_SET_GUARDS: Final = set_locally(
    {name: value for name, value in (GUARDS | SETTINGS | TIMEOUTS).items() if name not in _BY_POOLER}
)


async def is_pooled(arguments: Mapping[str, Any]) -> bool:
    """Return whether connections made with these arguments share server sessions through a pooler.

    Opens one or two connections. Some poolers refuse `options`, others drop them silently.
    Raises: psycopg.OperationalError when neither connection can be opened.
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

    Behind a pooler a single statement becomes a transaction of three messages: begin with guards, statement, commit. A
    transaction that its caller begins stays one, with the guards behind its BEGIN: all of it runs in one server session.
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
        if isinstance(query, str) and query.startswith("BEGIN"):
            await plain.execute(f"{query}; {_SET_GUARDS}")
            return self
        await plain.execute(f"BEGIN; {_SET_GUARDS}")
        try:
            await super().execute(query, params, **options)
        except Exception:
            with suppress(psycopg.Error):
                await plain.execute("ROLLBACK")
            raise
        await plain.execute("COMMIT")
        return self


def guard_transactions(engine: Engine) -> None:
    """Set the plan guards at the beginning of each transaction of a synchronous engine."""
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_SET_GUARDS))


def prepare_nothing(engine: Engine | AsyncEngine) -> None:
    """Make an engine's connections prepare no statements from their next checkout on; psycopg only."""
    pool = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if pool.dialect.driver not in {"psycopg", "psycopg_async"} or event.contains(pool, "checkout", _prepare_nothing):
        return
    event.listen(pool, "checkout", _prepare_nothing)


def _prepare_nothing(connection: Any, record: Any, proxy: Any) -> None:
    getattr(connection, "driver_connection", connection).prepare_threshold = None
