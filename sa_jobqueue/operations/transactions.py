"""What holds locks until its transaction ends needs a transaction."""

from __future__ import annotations

from sqlalchemy import Connection

from sa_jobqueue.errors import TransactionRequiredError


def require_transaction(connection: Connection, operation: str) -> None:
    """Refuse a connection in AUTOCOMMIT, on which each statement gives up its locks at once.

    No round trip: each of the supported drivers knows. Raises: TransactionRequiredError.
    """
    driver = connection.connection.dbapi_connection
    if driver is not None and driver.autocommit:
        raise TransactionRequiredError(operation)
