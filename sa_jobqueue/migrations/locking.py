"""Locks of a migration on a queue that is in use: requested briefly, released, requested again.

A lock on a whole table waits for every transaction that has touched it, and all that come later wait behind the one that
waits. So no session waits longer than a moment here: a lock that a long transaction holds is tried again after
others have had their turn.

Source: the way of `lock_timeout` and retries that PostgreSQL's manual leaves to its users; GitLab's `with_lock_retries`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import SchemaBusyError, require_postgresql
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.layout import Layout

PATIENCE: Final = timedelta(minutes=2)
"""Time for which a migration tries to get its locks."""
WAIT: Final = timedelta(seconds=1)
"""Lock timeout of each try, during which other sessions queue behind it."""
REST: Final = timedelta(seconds=1)
"""Pause between two tries, during which other sessions can use the tables."""

_LOCK_NOT_AVAILABLE: Final = "55P03"
_HOLDERS: Final = text(
    """
    SELECT DISTINCT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_class c ON c.oid = l.relation
    WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.granted
      AND l.pid <> pg_backend_pid() AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(:job))
      AND c.relname LIKE :tables ORDER BY seconds DESC NULLS LAST LIMIT 5
    """
)


def with_short_locks(
    connection: Connection,
    layout: Layout,
    work: Callable[[], object],
    *,
    patience: timedelta = PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Do work that locks tables, in a savepoint; undo it if a lock is not had immediately, pause, and do it again.

    Locks: those of the work; those of a failed try are released, those held before it are not.
    Raises: SchemaBusyError when `patience` is over; nothing is changed then. Whatever else the work raises.
    """
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        attempt = connection.begin_nested()
        before = connection.scalar(text("SELECT current_setting('lock_timeout')"))
        try:
            _limit(connection, f"{WAIT // timedelta(milliseconds=1)}ms")
            work()
        except DBAPIError as error:
            attempt.rollback()
            if diagnose(error).sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            if time.monotonic() >= deadline:
                raise SchemaBusyError(layout.qualified("job"), patience, _holders(connection, layout)) from error
            sleep(REST.total_seconds())
        else:
            _limit(connection, before)  # what else the transaction does is not ours to hurry
            attempt.commit()
            return


@contextmanager
def in_transaction(connection: Connection) -> Iterator[None]:
    """Run a block in the connection's transaction, or in a new one where the driver commits each statement."""
    require_postgresql(connection.dialect.name)
    driver = connection.connection.dbapi_connection
    if driver is None or not driver.autocommit:
        yield
        return
    connection.exec_driver_sql("BEGIN")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def _limit(connection: Connection, value: Any) -> None:
    connection.execute(text("SELECT set_config('lock_timeout', :value, true)"), {"value": value})


def _holders(connection: Connection, layout: Layout) -> list[str]:
    rows = connection.execute(_HOLDERS, {"job": layout.qualified("job"), "tables": f"{layout.prefix}%"})
    return [f"process {pid} ({name or 'unnamed'}, open for {seconds or 0} s)" for pid, name, seconds in rows]
