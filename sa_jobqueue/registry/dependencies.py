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


class Providers:
    """The providers of a registry, by the class that a handler's parameter is annotated with."""

    def __init__(self) -> None:
        self._by_kind: dict[type[Any], Provider[Any]] = {}

    def add(self, kind: type[T], provider: Provider[T] | Callable[[AttemptContext], AbstractContextManager[T]]) -> None:
        """Register the provider of a class.

        Raises: InvalidOptionError if it is not a class, or is provided already.
        """
        if not isinstance(kind, type):
            raise InvalidOptionError("kind", f"must be a class that parameters are annotated with, got {kind!r}")
        if kind in self._by_kind:
            raise InvalidOptionError("kind", f"{kind.__name__} is provided already")
        if hasattr(provider, "open") and hasattr(provider, "close"):
            self._by_kind[kind] = provider
        elif callable(provider):
            self._by_kind[kind] = _OfFunction(provider)
        else:
            raise InvalidOptionError(
                "provider", f"must have open and close, or be a function of an attempt, got {provider!r}"
            )

    def find(self, hint: Any) -> Provider[Any] | None:
        """Return the provider of a parameter's annotation, or None."""
        return self._by_kind.get(hint) if isinstance(hint, type) else None
