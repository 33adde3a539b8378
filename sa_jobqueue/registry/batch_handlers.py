"""What a `JobQueue` has for handlers that take many jobs at once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE
from sa_jobqueue.policies.fairness import FairnessBy
from sa_jobqueue.policies.retention import Retention
from sa_jobqueue.policies.retry import RetryPolicy
from sa_jobqueue.registry.batches import BatchItem, BatchRule

if TYPE_CHECKING:
    from sa_jobqueue.registry.handlers import Handler

InT = TypeVar("InT")
P = ParamSpec("P")


class BatchDecorator(Protocol):
    """What `JobQueue.batch_handler(...)` returns: keeps the type of one job's payload."""

    @overload
    def __call__(
        self, func: Callable[Concatenate[list[BatchItem[InT]], P], Coroutine[Any, Any, Any]], /
    ) -> Handler[InT, Any, Any]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[list[BatchItem[InT]], P], Any], /) -> Handler[InT, Any, Any]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[list[InT], P], Coroutine[Any, Any, Any]], /) -> Handler[InT, Any, Any]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[list[InT], P], Any], /) -> Handler[InT, Any, Any]: ...


class Batching:
    """Declares handlers of batches."""

    def batch_handler(
        self,
        type_name: str,
        *,
        max_size: int,
        max_wait: timedelta = timedelta(milliseconds=100),
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        retry: RetryPolicy | None = None,
        version: int = 1,
        retention: Retention | None = None,
        concurrency: int | None = None,
        fairness_by: FairnessBy | None = None,
        rate_cost: int | None = None,
    ) -> BatchDecorator:
        """Register a function that is called with up to `max_size` jobs of `type_name` at once.

        Its first argument is annotated `list[Payload]` or `list[BatchItem[Payload]]`; a session and what is provided may
        follow. It returns None, or a list with each job's outcome: its output, a continuation, or an exception. What it
        raises fails all of them, `BatchFailed` some.
        `max_size`: 2 to 1,000. Each job is an attempt of its own, fenced, retried and timed by itself, and holds a slot of
        its worker: give workers a concurrency of a batch or more. `max_wait`: how long the first job waits for others, at
        most a minute and below `timeout`; a batch goes at once when it is full, and when its worker has no slot free for
        another job.
        The rest: as of `handler`; `timeout` is that of a job, whose time goes on while it waits.
        Raises: as `handler`; InvalidHandlerError for a function that takes no list, an AttemptContext or Blockers.
        """
        rule = BatchRule(max_size=max_size, max_wait=max_wait)
        if timeout is not None and timeout <= max_wait:
            raise InvalidOptionError("max_wait", f"must be below the timeout ({timeout}), which goes on meanwhile")
        registry: Any = self  # a `JobQueue`
        decorator: BatchDecorator = registry._declare(
            type_name,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
            retry=retry,
            version=version,
            retention=retention,
            concurrency=concurrency,
            fairness_by=fairness_by,
            rate_cost=rate_cost,
            batch=rule,
        )
        return decorator
