"""Dependencies: values other than the payload that a handler can receive, provided by the application or an extra."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import InvalidOptionError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_KNOWN: Final = {
    ("pyspark.sql.session", "SparkSession"): "sa_jobqueue.pipeline.spark.sessions:spark_sessions",
    ("pyspark.sql.connect.session", "SparkSession"): "sa_jobqueue.pipeline.spark.sessions:spark_sessions",
}
"""Classes that an extra provides by default; listed by name, so that they are not imported."""


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


class _FunctionProvider(Provider[T_co]):
    """A provider made from a function. It needs no cleanup, since attempts share nothing."""

    def __init__(self, function: Callable[[AttemptContext], AbstractContextManager[T_co]]) -> None:
        self._function = function

    def open(self, attempt: AttemptContext) -> AbstractContextManager[T_co]:
        """Call the function."""
        return self._function(attempt)

    def close(self) -> None:
        """Do nothing."""


class Providers:
    """The providers of a registry, by the class that a handler's parameter is annotated with."""

    def __init__(self) -> None:
        self._by_kind: dict[type[Any], Provider[Any]] = {}
        self._asked_for: set[type[Any]] = set()

    def add(self, kind: type[T], provider: Provider[T] | Callable[[AttemptContext], AbstractContextManager[T]]) -> None:
        """Register the provider of a class.

        Raises: InvalidOptionError if it is not a class, or is provided or used already.
        """
        if not isinstance(kind, type):
            raise InvalidOptionError("kind", f"must be a class that parameters are annotated with, got {kind!r}")
        if kind in self._by_kind:
            raise InvalidOptionError("kind", f"{kind.__name__} is provided already")
        if kind in self._asked_for:
            raise InvalidOptionError(
                "kind", f"{kind.__name__} is already used by handlers above, with its default: provide it before them"
            )
        if hasattr(provider, "open") and hasattr(provider, "close"):
            self._by_kind[kind] = provider
        elif callable(provider):
            self._by_kind[kind] = _FunctionProvider(provider)
        else:
            raise InvalidOptionError(
                "provider", f"must have open and close, or be a function of an attempt, got {provider!r}"
            )

    def find(self, hint: Any) -> Provider[Any] | None:
        """Return the provider of a parameter's annotation, or None. Raises: any error of importing an extra."""
        if not isinstance(hint, type):
            return None
        if hint in self._by_kind:
            return self._by_kind[hint]
        path = _KNOWN.get((hint.__module__, hint.__qualname__))
        if path is None:
            return None
        self._asked_for.add(hint)
        module, _, attribute = path.partition(":")
        provider: Provider[Any] = getattr(import_module(module), attribute)
        return provider
