"""What a handler may ask for beside its payload: values that the application, or an extra, lends to its attempts."""

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
    ("pyspark.sql.session", "SparkSession"): "sa_jobqueue.spark.sessions:spark_sessions",
    ("pyspark.sql.connect.session", "SparkSession"): "sa_jobqueue.spark.sessions:spark_sessions",
}
"""Classes that an extra provides without being told to: by name, for naming them must not import them."""


class Provider(Protocol[T_co]):
    """Lends something that belongs to the process: a client, a model in memory, a Spark session."""

    def lend(self, attempt: AttemptContext) -> AbstractContextManager[T_co]:
        """Open what one attempt is given; left when the handler has returned or raised, before its commit.

        Entered in the thread of a synchronous handler; for an asynchronous one in a thread beside its loop, so it may
        block. `attempt.on_stop` tells it when the attempt is to stop. An error fails the attempt; one of the handler's
        stays one, whatever the context manager makes of it.
        """

    def close(self) -> None:
        """Let go of what all attempts share: a worker of this process has stopped. It may be needed again."""


class _Lending(Provider[T_co]):
    """A provider of a function alone: nothing is shared between attempts, so there is nothing to close."""

    def __init__(self, lend: Callable[[AttemptContext], AbstractContextManager[T_co]]) -> None:
        self._lend = lend

    def lend(self, attempt: AttemptContext) -> AbstractContextManager[T_co]:
        """Open what one attempt is given."""
        return self._lend(attempt)

    def close(self) -> None:
        """Do nothing."""


class Providers:
    """Who provides what, by the class that a handler's parameter is annotated with."""

    def __init__(self) -> None:
        self._by_kind: dict[type[Any], Provider[Any]] = {}
        self._asked_for: set[type[Any]] = set()

    def add(self, kind: type[T], provider: Provider[T] | Callable[[AttemptContext], AbstractContextManager[T]]) -> None:
        """Register who provides a class. Raises: InvalidOptionError when it is none, is taken, or is asked for already."""
        if not isinstance(kind, type):
            raise InvalidOptionError("kind", f"must be a class that parameters are annotated with, got {kind!r}")
        if kind in self._by_kind:
            raise InvalidOptionError("kind", f"{kind.__name__} is provided already")
        if kind in self._asked_for:
            raise InvalidOptionError(
                "kind", f"{kind.__name__} is asked for by handlers above: provide it before them, or they have the default"
            )
        if hasattr(provider, "lend") and hasattr(provider, "close"):
            self._by_kind[kind] = provider
        elif callable(provider):
            self._by_kind[kind] = _Lending(provider)
        else:
            raise InvalidOptionError(
                "provider", f"must have lend and close, or be a function of an attempt, got {provider!r}"
            )

    def find(self, hint: Any) -> Provider[Any] | None:
        """Return who provides what a parameter is annotated with, or None. Raises: whatever importing an extra raises."""
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
