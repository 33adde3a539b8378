"""What the decorators of a `JobQueue` make of functions, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, Protocol, overload

from typing_extensions import TypeVar

from sa_jobqueue.context import Continuation
from sa_jobqueue.models import Job, JobMixin

if TYPE_CHECKING:
    from sa_jobqueue.registry.handlers import Handler

JobT = TypeVar("JobT", bound=JobMixin[Any], default=Job)
DEFAULT_MODEL: Any = Job
"""The class of jobs where an argument `model: type[JobT]` is not given; for a type checker the default of `JobT` decides."""
InT = TypeVar("InT", contravariant=True)
P = ParamSpec("P")


class Value(Protocol):
    """To a type checker, anything but a `Continuation`: what a handler may return as its chain's output."""

    def __reduce__(self) -> str | tuple[Any, ...]: ...


EndT = TypeVar("EndT", bound=Value | None, default=Any)
NextT = TypeVar("NextT", default=Never)


class HandlerDecorator(Protocol[JobT]):
    """What `JobQueue.handler(...)` returns: keeps the payload's and the output's types.

    The output is what comes out at the end of the chain: of `-> Report | Continuation[Page]` it is `Report | Page`.
    Four shapes of functions, each with three of returns: without continuations, with nothing else, with both.
    """

    @overload
    def __call__(self, func: Callable[[], Coroutine[Any, Any, EndT]], /) -> Handler[None, EndT, JobT]: ...
    @overload
    def __call__(self, func: Callable[[], Coroutine[Any, Any, Continuation[NextT]]], /) -> Handler[None, NextT, JobT]: ...
    @overload
    def __call__(
        self, func: Callable[[], Coroutine[Any, Any, EndT | Continuation[NextT]]], /
    ) -> Handler[None, EndT | NextT, JobT]: ...
    @overload
    def __call__(self, func: Callable[[], EndT], /) -> Handler[None, EndT, JobT]: ...
    @overload
    def __call__(self, func: Callable[[], Continuation[NextT]], /) -> Handler[None, NextT, JobT]: ...
    @overload
    def __call__(self, func: Callable[[], EndT | Continuation[NextT]], /) -> Handler[None, EndT | NextT, JobT]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[InT, P], Coroutine[Any, Any, EndT]], /) -> Handler[InT, EndT, JobT]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[InT, P], Coroutine[Any, Any, Continuation[NextT]]], /
    ) -> Handler[InT, NextT, JobT]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[InT, P], Coroutine[Any, Any, EndT | Continuation[NextT]]], /
    ) -> Handler[InT, EndT | NextT, JobT]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[InT, P], EndT], /) -> Handler[InT, EndT, JobT]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[InT, P], Continuation[NextT]], /) -> Handler[InT, NextT, JobT]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[InT, P], EndT | Continuation[NextT]], /
    ) -> Handler[InT, EndT | NextT, JobT]: ...
