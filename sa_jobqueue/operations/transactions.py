"""Where the statements of an operation go: to the bind of the queue's class, in a transaction if locks need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Update, inspect, update
from sqlalchemy.orm import Mapper, Session

from sa_jobqueue.errors import InvalidOptionError


def require_transaction(connection: Connection, operation: str) -> None:
    """Refuse a connection in AUTOCOMMIT, on which each statement gives up its locks when it ends.

    No round trip: each of the supported drivers knows. Raises: InvalidOptionError.
    """
    driver = connection.connection.dbapi_connection
    if driver is not None and driver.autocommit:
        raise InvalidOptionError(
            "session",
            f"is in AUTOCOMMIT, and {operation} needs a transaction: use an engine with another isolation_level, such as "
            "READ COMMITTED; nothing was written",
        )


def queue_connection(session: Session, model: type[Any]) -> Connection:
    """Return the session's connection for writes to the queue of `model`.

    It is that of the class among `binds`; the clause makes a `get_bind` that separates writes choose the primary.
    Raises: InvalidOptionError where a `schema_translate_map` would move the job tables.
    """
    connection = session.connection(bind_arguments=_bind_arguments(model))
    model.__jobqueue__.check_translation(connection.get_execution_options())
    return connection


@contextmanager
def on_queue(session: Session, model: type[Any]) -> Iterator[None]:
    """Within, send the session's statements for the queue, reads included, to the bind of `queue_connection`.

    A session with `binds`, or with a `get_bind` that sends reads to a replica, would otherwise choose by each statement: the
    queue's other classes are not in `binds`, its functions and locks belong to no class, and a replica is late. What belongs
    to other classes, as in a flush, goes where the session sends it.
    """
    chosen = session.get_bind
    bind = chosen(**_bind_arguments(model))
    layout = model.__jobqueue__

    def get_bind(mapper: Any = None, *args: Any, **arguments: Any) -> Any:
        of = None if mapper is None else inspect(mapper).class_
        is_of_queue = of is None or getattr(of, "__jobqueue__", None) is layout
        return bind if is_of_queue and not session._flushing else chosen(mapper, *args, **arguments)

    model.__jobqueue__.check_translation(bind.get_execution_options())
    session.get_bind = get_bind  # type: ignore[method-assign]
    try:
        yield
    finally:
        if session.__dict__.get("get_bind") is get_bind:
            del session.get_bind


def _bind_arguments(model: type[Any]) -> Any:
    mapper, clause = _mapped(model)  # type: ignore[arg-type]
    return {"mapper": mapper, "clause": clause}


@lru_cache(maxsize=256)
def _mapped(model: type[Any]) -> tuple[Mapper[Any], Update]:
    mapper = inspect(model)
    return mapper, update(mapper.local_table)
