"""Functions around attempts: the middleware of an application, registered on a `JobQueue`, and those of integrations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import InvalidHandlerError
from sa_jobqueue.registry.annotations import signature

Proceed: TypeAlias = Callable[[], Awaitable[None]]
"""Runs the next middleware, or the attempt itself, and raises its exception."""


class Middleware(Protocol):
    """A coroutine function around an attempt. It awaits `proceed()` exactly once; it may raise before or after it."""

    def __call__(self, attempt: AttemptContext, proceed: Proceed, /) -> Awaitable[None]:
        """Run the attempt by awaiting `proceed()`, with other work before and after it."""


class Surrounding(Protocol):
    """Functions that a framework's integration puts around attempts and calls, including those of included handlers."""

    def around_attempt(self) -> AbstractContextManager[object]:
        """Return the context manager around an attempt in the task that runs it, outside its middleware; in a child, too."""

    def around_call(self, place: str, session: Any) -> AbstractContextManager[object]:
        """Return the context manager around the call of a handler, in its thread, task or child process.

        `place`: where the handler is declared. `session`: the one that it is given; None if it takes none.
        """


def check_middleware(func: Any) -> None:
    """Check that an object can be called as middleware. Raises: InvalidHandlerError."""
    name = name_of(func)
    if not (inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__)):
        raise InvalidHandlerError(f"{name}: middleware is a coroutine function: async def ...(attempt, proceed)")
    try:
        signature(func).bind(None, None)
    except TypeError as error:
        raise InvalidHandlerError(f"{name}: middleware takes two arguments, attempt and proceed ({error})") from None


def name_of(func: Any) -> str:
    """Return where a function is declared, `module:function`, for messages."""
    function = func if hasattr(func, "__qualname__") else type(func)
    return f"{function.__module__}:{function.__qualname__}"
