"""What every exception of the library is made from."""

from __future__ import annotations

import inspect
from typing import Any, Final

MODULE: Final = "sa_jobqueue.errors"
"""Where people import them from, and so the module by which they are pickled, and named in the database."""


class Portable(Exception):  # noqa: N818 - only a base
    """Survives pickling whatever its constructor takes: an error often crosses from a process pool to its parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    return error


class JobQueueError(Portable):
    """The job queue could not do what was asked."""

    __module__ = MODULE

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (inspect.getdoc(type(self)) or "").partition("\n")[0])


class InvalidOptionError(JobQueueError, ValueError):
    """An option is out of its bounds; nothing was started.

    `option` names it, `reason` says what is wrong and what would be right.
    """

    __module__ = MODULE

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"{option}: {reason}")
