"""Dependencies: values other than the payload that a handler can receive, provided by the application."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import InvalidOptionError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Provider(Protocol[T_co]):
    """Provides a dependency that the process shares: a client, a model in memory, a Spark session."""

    def open(self, attempt: AttemptContext) -> AbstractContextManager[T_co]:
        """Return the context manager of the value for one attempt.

        It exits when the handler has returned or raised, before the commit. Entered in the thread of a synchronous
        handler; for an asynchronous one in a thread beside its loop, so it may block. `attempt.on_stop` notifies it
        when the attempt should stop. An error fails the attempt; an error of the handler is not suppressed, whatever
        the context manager returns.
        """

    def close(self) -> None:
        """Release what attempts share, after a worker of this process has stopped. `open` may be called again later."""


class _OfFunction(NamedTuple):
    """A provider made from a function. It needs no cleanup, since attempts share nothing."""

    open: Callable[[AttemptContext], AbstractContextManager[Any]]
    close: Callable[[], None] = lambda: None


def provider_of(provider: Provider[T] | Callable[[AttemptContext], AbstractContextManager[T]]) -> Provider[T]:
    """Return the provider that an application gives, as one or as a function. Raises: InvalidOptionError."""
    if hasattr(provider, "open") and hasattr(provider, "close"):
        return provider
    if callable(provider):
        return _OfFunction(provider)
    raise InvalidOptionError("provider", f"must have open and close, or be a function of an attempt, got {provider!r}")
