"""Which errors are about the data of one row, and writing a list of items in parts when one of them causes such an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from sa_jobqueue.errors.drivers import diagnose

T = TypeVar("T")
R = TypeVar("R")

NOT_OF_A_ROW: Final = frozenset({"08", "0A", "25", "26", "28", "34", "3D", "3F", "40", "42", "53", "55", "57", "58", "F0"})
"""Classes of SQLSTATE that are not caused by the rows written: connections, transactions, conflicts with other transactions,
locks, rights, missing objects, resources, operators, the system. The same statement is tried again as a whole.

**Source** PostgreSQL manual, appendix A.
"""


NO_RIGHT: Final = "42501"
MAX_ERROR: Final = 500
"""Characters kept of an error's message."""


def is_of_a_row(error: BaseException) -> bool:
    """Return whether a statement failed because of the data of a row: another statement without that row may succeed.

    What the server raised is judged by its SQLSTATE; classes that it does not know, as a trigger may raise, are of a row. So
    is a mistake in a function that a trigger runs, such as a column that is not there: it may concern some rows alone. Of
    the errors without an SQLSTATE those are that the driver raised for a value.
    """
    if not isinstance(error, DBAPIError):
        return False
    state = sqlstate(error)
    if state is None:
        return isinstance(error, (DataError, IntegrityError))
    if state[:2] == "42" and state != NO_RIGHT:
        return "PL/pgSQL" in (diagnose(error).context or "")
    return state[:2] not in NOT_OF_A_ROW


def sqlstate(error: DBAPIError) -> str | None:
    """Return the SQLSTATE of a driver's error, None where it has none."""
    return diagnose(error).sqlstate


def summary(error: DBAPIError) -> str:
    """Return an error on one line, without the statement's parameters: its type and the server's message."""
    first = next(iter(diagnose(error).message.strip().splitlines()), "")[:MAX_ERROR].replace("\x00", "")
    return f"{type(error.orig).__name__}: {first}"


async def in_parts(
    items: Sequence[T], write: Callable[[Sequence[T]], Awaitable[R]]
) -> tuple[list[R], list[tuple[T, DBAPIError]]]:
    """Write all items at once; on an error of a row write halves, down to the items that fail alone.

    `write`: one statement or one transaction, which changes nothing when it raises.
    Shape: what each successful `write` returned, in order; the items that failed alone, each with its error.
    One bad item among n costs about 2 log2(n) more calls. Raises: what is not of a row; the parts written stay written.
    """
    if not items:
        return [], []
    try:
        return [await write(items)], []
    except DBAPIError as error:
        if not is_of_a_row(error):
            raise
        if len(items) == 1:
            return [], [(items[0], error)]
    middle = len(items) // 2
    written, refused = await in_parts(items[:middle], write)
    more_written, more_refused = await in_parts(items[middle:], write)
    return written + more_written, refused + more_refused
