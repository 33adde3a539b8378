"""What a handler may ask for about its attempt: an argument annotated `AttemptContext`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.types import LONGEST, CancelReason, JobId, JobStatus, Json

OutT = TypeVar("OutT", covariant=True)
InT = TypeVar("InT", contravariant=True)
NextInT = TypeVar("NextInT")
NextOutT = TypeVar("NextOutT")


@dataclass(frozen=True, slots=True)
class Continuation(Generic[OutT]):
    """What a handler returns so that its chain goes on with another job: `handler.continuation(payload)` makes it.

    `job` is the next job; it is written in the transaction that completes the one before, and joins its chain there.
    """

    job: Any

    if TYPE_CHECKING:
        # What every value but this has: by it a type checker tells `Report | Continuation[Page]` apart (`decorators.Value`).
        __reduce__: ClassVar[None]  # type: ignore[assignment]


class Continues(Protocol[InT, OutT]):
    """A handler, as far as continuing with it goes."""

    def continuation(self, payload: InT, /, **options: Any) -> Continuation[OutT]:
        """Describe the next job of a chain."""


@dataclass(frozen=True, slots=True)
class BlockerOutcome:
    """How a chain ended that a job waited for."""

    chain_id: JobId
    type_name: str
    status: JobStatus
    output: Json
    """What its last job returned, as JSON; None unless it completed."""
    error: Json
    """The error of its last job; None if it completed."""


@dataclass(frozen=True, slots=True)
class Blockers(Generic[OutT]):
    """What a job waited for, for a handler with an argument of this type, such as `Blockers[list[Page]]`.

    The type in brackets is that of all outputs together, in the order of the job's `blockers`: `list[Page]` for any
    number of one kind, `tuple[Image, Text]` for two; where a blocker may fail and `on_failure` says "continue", its
    output is None, so `list[Page | None]`.
    """

    outputs: OutT
    outcomes: tuple[BlockerOutcome, ...]

    @property
    def failed(self) -> tuple[BlockerOutcome, ...]:
        """Those that died or were cancelled."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is not JobStatus.COMPLETED)


class ClaimedJob(NamedTuple):
    """The row of a claimed job, as the claim returned it."""

    id: JobId
    type_name: str
    queue: str
    priority: int
    chain_id: JobId
    chain_type_name: str
    chain_index: int
    input: Json
    input_version: int
    attempt: int
    max_attempts: int
    timeout: timedelta | None
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime
    trace_context: str | None
    chain_trace_context: str | None
    ordering_key: str | None = None
    rate_cost: int | None = None
    last_error: Json = None
    """Of the last attempt before this one that failed, as JSON: `type`, `message`, `traceback`; None for a first attempt."""
    last_attempt_ended_at: datetime | None = None
    """When the attempt before this one ended, by the database's clock; None for a first attempt."""


class AttemptContext:
    """One attempt, from inside: who it is, whether it should stop, and how to ask for more time.

    Given to handlers that have an argument of this type. Safe to use from the handler's thread or task only.
    """

    def __init__(self, job: ClaimedJob, worker_id: str, extend: Callable[[timedelta], None]) -> None:
        self.job = job
        """The job as it was claimed."""
        self.worker_id = worker_id
        """Who runs it."""
        self.notes: dict[str, Any] = {}
        """What is kept with the attempt's error, as JSON, should it fail; for what watches attempts."""
        self._extend = extend
        self._stopped = False
        self._reason: CancelReason | None = None
        self._told: list[Callable[[], None]] = []
        self._telling = threading.Lock()

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Binds the job's id, attempt and type to every record."""
        job = self.job
        return logging.LoggerAdapter(
            logging.getLogger(f"sa_jobqueue.job.{job.type_name}"),
            {"job_id": str(job.id), "job_attempt": job.attempt, "job_type": job.type_name},
        )

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop: timed out, cancelled, lost, or the worker is shutting down.

        A synchronous handler that runs long looks here now and then; an asynchronous one is cancelled at its next await.
        Whatever it does afterwards through its session is not kept.
        """
        return self._stopped

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why it should stop; None while it should not."""
        return self._reason

    def wait_cancelled(self, timeout: timedelta) -> bool:
        """Wait until the attempt should stop, at most `timeout`; return whether it should. For synchronous handlers."""
        stopped = threading.Event()  # not made for each attempt: few wait
        rescue = self.on_stop(stopped.set)
        try:
            return stopped.wait(timeout.total_seconds())
        finally:
            rescue()

    def on_stop(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when the attempt should stop, now if it should already; return what takes that back.

        It is called on the worker's loop: it returns at once. What it raises is logged, and stops nothing else.
        """
        with self._telling:
            if not self._stopped:
                self._told.append(callback)
                return lambda: self._tell_no_more(callback)
        callback()
        return lambda: None

    def _tell_no_more(self, callback: Callable[[], None]) -> None:
        with self._telling:
            if callback in self._told:
                self._told.remove(callback)

    def extend(self, timeout: timedelta) -> None:
        """Give the attempt `timeout` from now instead of what was left of its time.

        Returns at once; the lease in the database follows within a moment, fenced like every write of an attempt.
        Raises: InvalidOptionError unless above zero and at most 36,500 days.
        """
        if not timedelta(0) < timeout <= LONGEST:
            raise InvalidOptionError("timeout", f"must be above zero and at most {LONGEST.days} days, got {timeout}")
        self._extend(timeout)

    def continue_with(
        self, handler: Continues[NextInT, NextOutT], payload: NextInT, /, **options: Any
    ) -> Continuation[NextOutT]:
        """Let the chain go on with another job: return what this returns.

        `payload`: the next handler's, None for one that takes none. `options`: as `handler.job` takes them, `delay` and
        `blockers` among them. The next job, this one's completion and whatever this handler wrote through its session
        are one commit.
        Raises: as `handler.job`.
        """
        return handler.continuation(payload, **options)

    def stop(self, reason: CancelReason) -> None:
        """Tell the handler to stop. Called by the worker; the first reason stays."""
        with self._telling:
            if self._stopped:
                return
            self._reason = reason
            self._stopped = True
            told, self._told = self._told, []
        for callback in told:
            try:
                callback()
            except BaseException:  # user code: the others are called, and the attempt is stopped, whatever it raises
                self.logger.exception("an on_stop callback failed: %r", callback)


_CURRENT: ContextVar[AttemptContext | None] = ContextVar("sa_jobqueue_attempt", default=None)


def current_attempt() -> AttemptContext | None:
    """Return the attempt that the code calling this is part of; None outside of any.

    Known in the handler, its middleware and what they call, in tasks and threads that are started with the handler's
    context (`asyncio.create_task`, `asyncio.to_thread`); not in threads started without.
    """
    return _CURRENT.get()


def enter_attempt(attempt: AttemptContext) -> None:
    """Make an attempt the current one of this task. Called by the worker."""
    _CURRENT.set(attempt)
