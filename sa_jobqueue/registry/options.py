"""Options of handlers, each declared once: with its type, its default and its check. Pure."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.models.checks import check_name
from sa_jobqueue.models.options import DECLARED, JOB_OPTIONS
from sa_jobqueue.payloads import PayloadCodec
from sa_jobqueue.policies.fairness import FairnessBy, check_fairness_by
from sa_jobqueue.policies.retention import Retention
from sa_jobqueue.policies.retry import RetryPolicy
from sa_jobqueue.types import MOST_CONCURRENT

LEAST_MEMORY: Final = 128 * 2**20
"""Bytes. An interpreter that has imported SQLAlchemy, Pydantic and this library holds some 75 MiB."""
MAX_BATCH: Final = 1000
"""Maximum number of jobs of a batch."""
P = ParamSpec("P")
OwnerT = TypeVar("OwnerT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of every handler.

    `type_name`: name of its job type. `queue`, `priority`, `max_attempts`, `timeout`, `rate_cost`: defaults for its jobs, as
    in `JobMixin.__init__`.
    `retry`: a `Backoff`, or a function of (attempt, error) that returns a delay, or None to give up. The default is the
    backoff of the job's queue, or `Backoff()`.
    `version`: version of the payload's shape. Increase it, and add an upcaster, when you change the shape.
    `retention`: how long chains that start with this handler are kept; unset fields come from the queue or the registry.
    `concurrency`: maximum number of its jobs that one worker runs at a time, 1 to 10,000; unlimited by default.
    `fairness_by`: the source of `fairness_key`: the path of a payload field, such as "order.customer_id", or a function of
    the payload.
    `codec`: encrypts or compresses stored inputs and outputs; see `PayloadCodec`.
    """

    type_name: str = field(kw_only=False)
    # job options: handlers
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 20
    timeout: timedelta | None = None
    rate_cost: int | None = None
    version: int = 1
    # end of job options
    retry: RetryPolicy | None = None
    retention: Retention | None = None
    concurrency: int | None = None
    fairness_by: FairnessBy | None = None
    codec: PayloadCodec | None = None

    def check(self) -> None:
        """Check the options. Raises: InvalidJobError for one of a job, InvalidOptionError for another."""
        check_name("type_name", self.type_name)
        for option in map(JOB_OPTIONS.__getitem__, DECLARED):
            value = getattr(self, option.handler)
            if value is not None or option.default is not None:
                option.check(option.handler, value)
        check_fairness_by(self.fairness_by)
        retry: Any = self.retry
        if retry is not None and not callable(retry):
            reason = f"must be a Backoff or a function of (attempt, error), got {retry!r}"
            raise InvalidOptionError("retry", reason)
        if self.concurrency is not None:
            check_number("concurrency", self.concurrency, 1, MOST_CONCURRENT)
        if self.retention is not None and not isinstance(self.retention, Retention):
            raise InvalidOptionError("retention", f"must be a Retention or None, got {self.retention!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions(Options):
    """Options of a handler that takes one job: those of `Options`, and these.

    `isolation`: "process" runs attempts in a child process of the worker. `memory_limit`: bytes that it may use, at least
    128 MiB; Linux only.
    `rehearsable`: whether `rehearse` may run it: its effects are those of its session, and of steps.
    """

    isolation: Literal["process"] | None = None
    memory_limit: int | None = None
    rehearsable: bool = False

    def check(self) -> None:
        """Check the options. Raises: InvalidJobError, InvalidOptionError."""
        Options.check(self)
        if self.isolation not in {None, "process"}:
            reason = f'must be "process", or None for the worker\'s own process, got {self.isolation!r}'
            raise InvalidOptionError("isolation", reason)
        if not isinstance(self.rehearsable, bool):
            raise InvalidOptionError("rehearsable", f"must be True or False, got {self.rehearsable!r}")
        if self.isolation is not None:
            _open_standard_streams()
        if self.memory_limit is None:
            return
        if self.isolation is None:
            raise InvalidOptionError("memory_limit", 'is of a process of its own: give isolation="process" with it')
        if not isinstance(self.memory_limit, int) or self.memory_limit < LEAST_MEMORY:
            reason = f"must be at least {LEAST_MEMORY:,} bytes, which an interpreter needs, got {self.memory_limit!r}"
            raise InvalidOptionError("memory_limit", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(Options):
    """Options of a batch handler: those of `Options`, and these.

    `max_size`: maximum number of jobs of one call, 2 to 1,000; each occupies a slot of its worker. `max_wait`: how long the
    first of them waits for others, 0 to 1 minute, below `timeout`; with zero, a batch has the jobs of one claim.
    """

    max_size: int
    max_wait: timedelta = timedelta(milliseconds=100)

    def check(self) -> None:
        """Check the options. Raises: InvalidJobError, InvalidOptionError."""
        check_number("max_size", self.max_size, 2, MAX_BATCH)
        check_duration("max_wait", self.max_wait, or_zero=True, most=timedelta(minutes=1))
        Options.check(self)
        if self.timeout is not None and self.timeout <= self.max_wait:
            raise InvalidOptionError("max_wait", f"must be below the timeout ({self.timeout}), which includes the wait")


def taking(
    options: Callable[P, object],
) -> Callable[[Callable[Concatenate[OwnerT, ...], ResultT]], Callable[Concatenate[OwnerT, P], ResultT]]:
    """Return a decorator that gives a method the parameters of a class, for type checkers, editors and `help`."""

    def decorate(method: Callable[Concatenate[OwnerT, ...], ResultT]) -> Callable[Concatenate[OwnerT, P], ResultT]:
        method_signature = inspect.signature(method)
        parameters = [next(iter(method_signature.parameters.values())), *inspect.signature(options).parameters.values()]
        method.__signature__ = method_signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # of any function
        return method

    return decorate


def _open_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams.

    Their numbers would go to the next file that is opened, such as an event loop, and uvloop aborts when it starts a child
    process then. So this is done as early as it is known that there will be one.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # standard error
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
