"""A connection apart from its pool, for settings that must not return there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine


@contextmanager
def detached(engine: Engine, **options: Any) -> Iterator[Connection]:
    """Yield a connection with execution options, and close it afterwards, even if the block raises.

    Raises: sqlalchemy.exc.DBAPIError if there is no connection.
    """
    connection = engine.connect().execution_options(**options)
    dbapi_connection: Any = connection.connection.dbapi_connection
    connection.detach()
    # Of a detached connection that an interrupt invalidates, or that cannot be rolled back, SQLAlchemy closes nothing.
    with closing(dbapi_connection), connection:
        yield connection
