"""What holds locks until its transaction ends needs a transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, inspect, update
from sqlalchemy.orm import Session

from sa_jobqueue.errors import TransactionRequiredError


def require_transaction(connection: Connection, operation: str) -> None:
    """Refuse a connection in AUTOCOMMIT, on which each statement gives up its locks when it ends.

    No round trip: each of the supported drivers knows. Raises: TransactionRequiredError.
    """
    driver = connection.connection.dbapi_connection
    if driver is not None and driver.autocommit:
        raise TransactionRequiredError(operation)


def queue_connection(session: Session, model: type[Any]) -> Connection:
    """Return the session's connection for writes to the queue of `model`.

    It is that of the class among `binds`; the clause makes a `get_bind` that separates writes choose the primary.
    """
    mapper = inspect(model)
    return session.connection(bind_arguments={"mapper": mapper, "clause": update(mapper.local_table)})
