"""Closes connections that come back to a pool in another state than they were given in.

Settings of a handler, and a transaction that it has left open, may outlast its attempt; so may a transaction in which a
completion was hidden.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

_IS_DISCARDED: Final = "sa_jobqueue.is_discarded"
"""In the `info` of a pooled connection: whether it is closed when it comes back."""
_SETTINGS: Final = "sa_jobqueue.settings"
"""In the `info` of a pooled connection: the settings of the driver with which it was checked out."""
_RETURNED: Final = "sa_jobqueue.returned"
"""In the `info` of a pooled connection: the settings of the driver with which it came back."""


def watch(engine: Engine) -> None:
    """Close connections of an engine that come back in another state. Call it once for an engine."""
    event.listen(engine, "checkout", _check_returned, insert=True)  # before listeners that set its state
    event.listen(engine, "checkout", _on_checkout)
    event.listen(engine, "checkin", _on_checkin)


def discard(connection: Connection) -> None:
    """Have a connection closed when it comes back."""
    connection.info[_IS_DISCARDED] = True


def remember(connection: Connection) -> None:
    """Have a connection that was checked out before its engine was watched come back with the settings that it has now."""
    connection.info.setdefault(_SETTINGS, _settings_of(connection.connection.driver_connection))


def _check_returned(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
    """Have the pool replace a connection whose driver was given other settings while no session had it.

    A handler that has rolled back its session may still hold the driver's connection.
    """
    returned = record.info.pop(_RETURNED, None)
    if returned not in {None, _settings_of(record.driver_connection)}:
        raise DisconnectionError("the settings of the driver's connection were changed in the pool")


def _on_checkout(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
    record.info[_SETTINGS] = _settings_of(record.driver_connection)


def _on_checkin(connection: Any, record: ConnectionPoolEntry) -> None:
    """Close a connection that is in a transaction, or whose driver has other settings, instead of giving it to the next one.

    The pool has rolled back what SQLAlchemy knew of. A transaction that is still open is one that it does not know of: of a
    refused commit, or begun past it.
    """
    driver: Any = record.driver_connection
    earlier_settings = record.info.pop(_SETTINGS, None)
    is_discarded = record.info.pop(_IS_DISCARDED, False)
    if connection is not None and (
        is_discarded or _is_in_transaction(driver) or earlier_settings not in {None, _settings_of(driver)}
    ):
        record.invalidate()
    elif connection is not None:
        record.info[_RETURNED] = _settings_of(driver)


def _settings_of(driver: Any) -> tuple[Any, ...]:
    names = ("autocommit", "isolation_level", "read_only", "readonly", "deferrable")
    return tuple(getattr(driver, name, None) for name in names)


def _is_in_transaction(driver: Any) -> bool:
    if (is_in_transaction := getattr(driver, "is_in_transaction", None)) is not None:  # asyncpg
        return bool(is_in_transaction())
    info = getattr(driver, "info", None)
    return info is not None and int(info.transaction_status) != TransactionStatus.IDLE
