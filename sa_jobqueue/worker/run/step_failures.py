"""Errors of steps as recorded facts: stored as type, message and arguments, rebuilt only as a class that the call names."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final, TypeAlias

from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import AttemptSignal, InvalidOptionError, LostAttemptError, StepBlockedError

Caught: TypeAlias = tuple[type[Exception], ...]
"""The classes of errors that a step declares by `catch`."""

_SIGNALS: Final = (AttemptSignal, LostAttemptError, StepBlockedError)
"""Errors that end the attempt, whatever a step declares."""


def check_catch(catch: object) -> Caught:
    """Return the classes that `catch` names. Raises: InvalidOptionError."""
    classes = catch if isinstance(catch, tuple) else () if catch is None else (catch,)
    for error_class in classes:
        if not isinstance(error_class, type) or not issubclass(error_class, Exception):
            raise InvalidOptionError("catch", f"must be a class of exceptions or a tuple of them, got {error_class!r}")
        if issubclass(error_class, _SIGNALS):
            raise InvalidOptionError("catch", f"cannot be {error_class.__name__}: it ends the attempt and is no result")
    return classes


def failure_document(error: Exception, catch: Caught) -> dict[str, Any] | None:
    """Return an error as it is stored; None if no class of `catch` has it."""
    error_class = None
    if not isinstance(error, _SIGNALS):
        error_class = next((candidate for candidate in catch if isinstance(error, candidate)), None)
    if error_class is None:
        return None
    if isinstance(error, DBAPIError):  # not the statement and its parameters, which may be personal data
        return {"type": _name(error_class), "message": str(error.orig), "arguments": None}
    arguments: list[Any] | None = list(error.args)
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError):
        arguments = None
    return {"type": _name(error_class), "message": str(error), "arguments": arguments}


def rebuilt(document: dict[str, Any], catch: Caught) -> Exception | None:
    """Return a recorded error; None if no class of `catch` has its name.

    A class whose constructor does not accept the arguments, or whose arguments were not JSON, has the message as its only
    argument, and its constructor is not called.
    """
    error_class = next((candidate for candidate in catch if _name(candidate) == document["type"]), None)
    if error_class is None:
        return None
    if document["arguments"] is not None:
        with suppress(Exception):  # whatever the application's constructor raises
            error = error_class(*document["arguments"])
            if str(error) == document["message"]:
                return error
    if issubclass(error_class, DBAPIError):
        return error_class(None, None, Exception(document["message"]))
    error = error_class.__new__(error_class, document["message"])
    error.args = (document["message"],)
    return error


def _name(error_class: type[Exception]) -> str:
    return f"{error_class.__module__}.{error_class.__qualname__}"
