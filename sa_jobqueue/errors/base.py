"""Base classes of the library's exceptions."""

from __future__ import annotations

import inspect
from typing import Any, Final

MODULE: Final = "sa_jobqueue.errors"
"""The public module of the classes: they are pickled, and named in the database, by it."""


class Portable(Exception):  # noqa: N818 - only a base
    """Can be pickled whatever its constructor takes, for instance to cross from a process pool to its parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    return error


class JobQueueError(Portable):
    """The job queue could not carry out the call.

    `message`: the text of the error; by default the first line of the class's docstring.
    """

    __module__ = MODULE

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (inspect.getdoc(type(self)) or "").partition("\n")[0])


class InvalidOptionError(JobQueueError, ValueError):
    """An option has an invalid value; nothing was started.

    `option` is its name, `reason` states the fault and the accepted values.
    """

    __module__ = MODULE

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"{option}: {reason}")
