"""Driver errors that mean something to a caller, translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import ConflictError, IllegalTransitionError, InvalidJobError
from sa_jobqueue.errors.drivers import diagnose


@contextmanager
def translated() -> Iterator[None]:
    """Raise ours for the driver errors we know, the cause chained; let every other through as it is.

    Raises: IllegalTransitionError (SQLSTATE SJ001, the queue's own), InvalidJobError (SJ002, SJ003, check
    violations), ConflictError (unique and foreign key violations).
    """
    try:
        yield
    except DBAPIError as error:
        diagnosis = diagnose(error)
        message, constraint = diagnosis.message, diagnosis.constraint or ""
        match diagnosis.sqlstate:
            case "SJ001":
                raise IllegalTransitionError(message) from error
            case "SJ002" | "SJ003":
                raise InvalidJobError(diagnosis.column or "job", message) from error
            case "22P02":
                raise InvalidJobError("id", message) from error
            case "23514":
                raise InvalidJobError(constraint, message) from error
            case "23503":
                raise ConflictError(message, constraint) from error
            case "23505":
                raise ConflictError(f"{message}; another row holds that key", constraint) from error
        raise
