"""Which errors are about the data of one row, and writing a list of items in parts when one of them causes such an error."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from traceback import walk_tb
from typing import Final, TypeVar

import psycopg
from sqlalchemy import exc

from sa_jobqueue.errors import DatabaseUnavailableError
from sa_jobqueue.errors.drivers import diagnose

T = TypeVar("T")
R = TypeVar("R")

NOT_OF_A_ROW: Final = frozenset({"08", "0A", "25", "26", "28", "34", "3D", "3F", "40", "42", "53", "55", "57", "58", "F0"})
"""Classes of SQLSTATE that are not caused by the rows written: connections, transactions, conflicts with other transactions,
locks, rights, missing objects, resources, operators, the system. The same statement is tried again as a whole.

**Source** PostgreSQL manual, appendix A.
"""

_UNREACHABLE: Final = frozenset({"08", "53", "57"})
_OF_THE_SERVER: Final = frozenset({"08", "53", "57", "58", "XX"})
NO_RIGHT: Final = "42501"
_OF_THE_CONNECTION: Final = (
    psycopg.Error,
    DatabaseUnavailableError,
    exc.DisconnectionError,
    MemoryError,
    exc.PendingRollbackError,
    exc.TimeoutError,
    exc.ResourceClosedError,
)
"""Errors without an SQLSTATE that are about the connection or the process."""
MAX_ERROR: Final = 500
"""Characters kept of an error's message."""


def is_unreachable(error: BaseException) -> bool:
    """Return whether an error is of a connection that could not be opened.

    The pool has no free one, or the server is down, starting, or has no connection left.
    """
    if isinstance(error, (exc.OperationalError, exc.InterfaceError)):
        state = sqlstate(error)
        return state is None or state[:2] in _UNREACHABLE
    if isinstance(error, OSError):  # asyncpg's is not translated; a handler's own calls raise it as well
        return any(
            frame.f_globals.get("__name__", "").startswith("sqlalchemy.") for frame, _ in walk_tb(error.__traceback__)
        )
    return isinstance(error, exc.TimeoutError)


def is_of_a_row(error: BaseException) -> bool:
    """Return whether a statement failed because of the data of a row: another statement without that row may succeed.

    An error of the server is judged by its SQLSTATE; classes that it does not know, as a trigger may raise, are of a row. So
    is a mistake in a function that a trigger runs, such as a column that is not there: it may concern some rows alone. Of
    the errors without an SQLSTATE those are that the driver raised for a value. So is what Python raised while the values
    were made or converted: a default, a column type, an event listener of the application.
    """
    if not isinstance(error, Exception):
        return False
    if not isinstance(error, exc.DBAPIError):
        if isinstance(error, OSError):  # an application's default or listener may raise it as well
            modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
            return not any(module.startswith("psycopg") for module in modules)
        return not isinstance(error, _OF_THE_CONNECTION) or _is_of_the_application(error)
    state = sqlstate(error)
    if state is None:
        of_a_value = isinstance(error, (exc.DataError, exc.IntegrityError, exc.NotSupportedError, exc.ProgrammingError))
        return not error.connection_invalidated and (of_a_value or _is_of_the_application(error))
    if state[:2] == "42" and state != NO_RIGHT:
        return "PL/pgSQL" in (diagnose(error).context or "")
    return state[:2] not in NOT_OF_A_ROW


def is_of_a_trigger(error: BaseException) -> bool:
    """Return whether a trigger, or the action of a foreign key, raised an error of the server that may concern some rows.

    It may have any SQLSTATE, such as that of a right that only the trigger needs, but not those of the connection, the
    server's resources, an operator, the system or a defect of the server.
    """
    state = sqlstate(error) if isinstance(error, exc.DBAPIError) else None
    if state is None or state[:2] in _OF_THE_SERVER:
        return False
    return isinstance(error, exc.DBAPIError) and bool(diagnose(error).context)


def _is_of_the_application(error: BaseException) -> bool:
    """Return whether code of the application raised it that SQLAlchemy called: of a column type, a default, an event.

    It may use a separate connection, such as to read a key that a type encrypts with. Not an error that an event raised
    while a connection was opened: no row is the cause.
    """
    is_called = False
    for frame, _ in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if module.startswith("sqlalchemy.pool"):
            return False
        if package == "sqlalchemy":
            is_called = True
        elif is_called and package not in _LIBRARIES:
            return getattr(error, "sqlstate", None) is None
    return False


_LIBRARIES: Final = (
    frozenset({"psycopg", "psycopg_binary", "psycopg_pool", "sa_jobqueue", "greenlet"}) | sys.stdlib_module_names
)


def cause_of(error: Exception) -> BaseException:
    """Return what Python raised while SQLAlchemy prepared a statement; any other error as it is."""
    if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
        return error.orig or error
    return error


def sqlstate(error: Exception) -> str | None:
    """Return the SQLSTATE of a driver's error, None where it has none."""
    return diagnose(error).sqlstate if isinstance(error, exc.DBAPIError) else None


def summary(error: Exception) -> str:
    """Return an error on one line, without the statement's parameters: its type and the server's message."""
    if isinstance(error, exc.DBAPIError):
        kind, message = type(error.orig).__name__, diagnose(error).message
    else:
        cause = cause_of(error)
        kind = type(cause).__name__
        try:
            message = str(cause)
        except Exception:  # code of the application
            message = "its message could not be made"
    first = next(iter(message.strip().splitlines()), "")[:MAX_ERROR].replace("\x00", "")
    return f"{kind}: {first}".encode("utf-8", "backslashreplace").decode()


async def in_parts(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[R]],
    *,
    splits: Callable[[Exception], bool] = is_of_a_row,
) -> tuple[list[R], list[tuple[T, Exception]]]:
    """Write all items together; on an error of a row write halves, down to the items that fail alone.

    `write`: one statement or one transaction, which changes nothing when it raises. `splits`: whether an error is of a row.
    Shape: what each successful `write` returned, in order; the items that failed alone, each with its error. One bad item
    among n costs about 2 log2(n) more calls. Raises: errors that are not of a row; the parts written stay written.
    """
    if not items:
        return [], []
    try:
        return [await write(items)], []
    except Exception as error:
        if not splits(error):
            raise
        if len(items) == 1:
            return [], [(items[0], error)]
    middle = len(items) // 2
    results, refused = await in_parts(items[:middle], write, splits=splits)
    more_written, more_refused = await in_parts(items[middle:], write, splits=splits)
    return results + more_written, refused + more_refused
