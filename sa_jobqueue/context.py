"""The context of an attempt, for handlers with an argument annotated `AttemptContext`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Sized
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, overload

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.retry import RetryPolicy
from sa_jobqueue.types import CancelReason, JobId, JobStatus, Json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

OutT = TypeVar("OutT", covariant=True)
InT = TypeVar("InT", contravariant=True)
NextInT = TypeVar("NextInT")
NextOutT = TypeVar("NextOutT")
ItemT = TypeVar("ItemT")
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
ThirdT = TypeVar("ThirdT")

_LONGEST_MESSAGE: Final = 200
"""Maximum number of characters of the message of a progress report."""
_MOST_UNITS: Final = 2**63 - 1
"""Maximum of the numbers of a progress report."""


@dataclass(frozen=True, slots=True)
class Continuation(Generic[OutT]):
    """Return value of a handler that continues its chain with another job; create it with `handler.continuation(payload)`.

    `job` is the next job of the chain; it is written in the transaction that completes the job before it.
    """

    job: Any

    if TYPE_CHECKING:
        # Every other value has this attribute, so a type checker can separate `Report | Continuation[Page]`
        # (`registry.handlers.Value`).
        __reduce__: ClassVar[None]  # type: ignore[assignment]


class Continues(Protocol[InT, OutT]):
    """A handler that a chain can continue with."""

    def continuation(self, payload: InT, /, **options: Any) -> Continuation[OutT]:
        """Create the next job of a chain.

        `payload`: as for `Handler.job`. `options`: those of `Handler.job`. Returns a value that a handler returns to
        continue its chain.
        """


@dataclass(frozen=True, slots=True)
class BlockerOutcome:
    """Outcome of a chain that a job waited for."""

    chain_id: JobId
    """Id of the chain."""
    type_name: str
    """Type of the chain's root job."""
    status: JobStatus
    """Status of its last job."""
    output: Json
    """Return value of its last job, as JSON; None unless the chain completed."""
    error: Json
    """Error of its last job; None if the chain completed, or was redriven since and goes on."""


@dataclass(frozen=True, slots=True)
class Blockers(Generic[OutT]):
    """Outcomes of the chains that a job waited for; an argument of its handler, such as `Blockers[list[Page]]`.

    The type in brackets is that of all outputs: `list[Page]` for any number of one type, `tuple[Image, Text]` for two.
    A failed blocker with `on_failure="continue"` has the output None.
    """

    outputs: OutT
    """Their outputs, in the order of the job's `blockers`."""
    outcomes: tuple[BlockerOutcome, ...]
    """Outcome of each chain, in the same order."""

    @property
    def failed(self) -> tuple[BlockerOutcome, ...]:
        """Blockers that died or were cancelled."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is not JobStatus.COMPLETED)


class ClaimedJob(NamedTuple):
    """The row of a claimed job, as the claim returned it."""

    id: JobId
    """Id of the job."""
    type_name: str
    """The job type."""
    queue: str
    """Its queue."""
    fairness_key: str
    """Its fairness key, such as a customer's id; empty for none."""
    priority: int
    """Its priority."""
    chain_id: JobId
    """Id of its chain, which is the root job's."""
    chain_type_name: str
    """Type of the root job."""
    chain_index: int
    """Its position in the chain; 0 for the root."""
    input: Json
    """Its payload as stored JSON."""
    input_version: int
    """Version of the payload's shape."""
    attempt: int
    """Number of this attempt, from 1."""
    max_attempts: int
    """Maximum number of attempts."""
    timeout: timedelta | None
    """Timeout of each attempt; None for no timeout."""
    created_at: datetime
    """When it was enqueued."""
    scheduled_at: datetime
    """When it was due."""
    started_at: datetime
    """When this attempt was claimed, by the database's clock."""
    trace_context: str | None
    """W3C `traceparent` of the span that enqueued it; None without tracing."""
    chain_trace_context: str | None
    """The same of the chain's root job."""
    ordering_key: str | None = None
    """Its ordering key; None for none."""
    rate_cost: int | None = None
    """Cost of an attempt against a rate limit; None: 1."""
    deadline: datetime | None = None
    """When it is ended at the latest, by the database's clock; None for no deadline."""
    last_error: Json = None
    """Error of the last failed attempt, as JSON: `type`, `message`, `traceback`; None for a first attempt."""
    last_attempt_ended_at: datetime | None = None
    """When the attempt before this one ended, by the database's clock; None for a first attempt."""
    table_oid: int = 0
    """OID of the table that the job was claimed in. Only a write to that table completes the attempt."""

    @property
    def queue_key(self) -> QueueKey:
        """The queue and the fairness key as one text, for use inside the worker."""
        return QueueKey(self.queue, self.fairness_key)


class StepRequest(Generic[OutT]):
    """A `ChildJob`, an `EventWait` or a `Timer`: what `AttemptContext.all` and `AttemptContext.first` wait for.

    `name`, `key`: of its step.
    """

    name: str
    key: str | int | None


class ChildJob(StepRequest[OutT]):
    """Another job, whose result is waited for: the arguments of `AttemptContext.run`.

    `handler`, `payload`, `name`, `key`, `catch`, `options`: as for `AttemptContext.run`.
    """

    def __init__(
        self,
        handler: Continues[NextInT, OutT],
        payload: NextInT = None,  # type: ignore[assignment]  # as in `AttemptContext.continue_with`
        /,
        *,
        name: str | None = None,
        key: str | int | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
        **options: Any,
    ) -> None:
        self.handler: Any = handler
        self.payload = payload
        self.name = getattr(handler, "name", "") if name is None else name
        self.key = key
        self.catch = catch
        self.options = options


class EventWait(StepRequest[OutT]):
    """An event, whose payload is waited for: the arguments of `AttemptContext.wait_for`.

    `name`, `event`, `timeout`, `key`, `output`: as for `AttemptContext.wait_for`.
    """

    @overload
    def __init__(
        self, name: str, *, event: str, timeout: timedelta, key: str | int | None = None, output: type[OutT]
    ) -> None: ...
    @overload
    def __init__(
        self: EventWait[Any], name: str, *, event: str, timeout: timedelta, key: str | int | None = None, output: None = None
    ) -> None: ...
    def __init__(
        self, name: str, *, event: str, timeout: timedelta, key: str | int | None = None, output: Any = None
    ) -> None:
        self.name = name
        self.event = event
        self.timeout = timeout
        self.key = key
        self.output = output


class Timer(StepRequest[None]):
    """A time that has to pass: the arguments of `AttemptContext.sleep`. Its result is None.

    `name`, `duration`, `key`: as for `AttemptContext.sleep`.
    """

    def __init__(self, name: str, duration: timedelta, *, key: str | int | None = None) -> None:
        self.name = name
        self.duration = duration
        self.key = key


@dataclass(frozen=True, slots=True)
class Winner(Generic[OutT]):
    """The result of `AttemptContext.first`."""

    name: str
    """Name of the step that was first."""
    key: str
    """Its key; empty for none."""
    value: OutT
    """Its result; None for a `Timer`."""

    if TYPE_CHECKING:
        # So that `winner = await ctx.first(...)` and, in a synchronous handler, `winner = ctx.first(...)` have this type.
        def __await__(self) -> Generator[Any, Any, Winner[OutT]]: ...


class Results(list[ItemT]):
    """The results of `AttemptContext.all`, in the order of its requests."""

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, Any, Results[ItemT]]: ...


class StepTransaction(AbstractContextManager["Session | None"], AbstractAsyncContextManager["AsyncSession | None"]):
    """Context manager that `AttemptContext.transaction` returns, for `with` or `async with`.

    It gives the session; None if an earlier attempt has committed the step. At its end the effects and the checkpoint are
    committed together, or rolled back.
    """


def extension_refused(level: str) -> InvalidOptionError:
    """Return the error for an extension that the completion at the isolation level `level` would collide with."""
    return InvalidOptionError(
        "isolation_level",
        "must be READ COMMITTED for a transaction during which the attempt calls `ctx.extend`, got "
        f"{level}: `extend` writes the job's row, and a transaction that reads an older snapshot cannot complete the job "
        "then. Call it before the first statement of the transaction, set a longer `timeout`, or use READ COMMITTED",
    )


class AttemptContext:
    """One attempt, for its handler. Use it only from the handler's thread or task.

    The worker creates it. `job`: the claimed job. `worker_id`: id of the worker. `extend`, `steps`: functions of the
    worker that carry out the methods.
    """

    def __init__(
        self,
        job: ClaimedJob,
        worker_id: str,
        extend: Callable[[AttemptContext, timedelta], Future[None] | None],
        *,
        steps: Callable[[AttemptContext], Any] | None = None,
    ) -> None:
        self.job = job
        """The job as it was claimed."""
        self.worker_id = worker_id
        """Id of the worker that runs it."""
        self.notes: dict[str, Any] = {}
        """JSON that is recorded with the attempt's error if it fails; for instrumentation."""
        self.error: BaseException | None = None
        """The attempt's exception, or signal such as `Snooze`; None before that."""
        self.suspended: BaseException | None = None
        """The signal with which a step ended the attempt; a handler that catches it cannot complete the job."""
        self.reported: tuple[float, float | None, str | None] | None = None
        """What `progress` reported last: `done`, `total` and `message`; None before that."""
        self.snapshot_levels: dict[object, str] = {}
        """Isolation levels of the open transactions of its sessions that read a snapshot of their beginning, by guard."""
        self.transactions: set[Any] = set()
        """Guards of the open transactions of its sessions."""
        self.extension: Future[None] | None = None
        """The write of the last call of `extend`; None before that."""
        self._extend = extend
        self._open_steps = steps
        self._stopped = False
        self._reason: CancelReason | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._callbacks_lock = threading.Lock()

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger that adds the job's id, attempt and type to every record."""
        job = self.job
        return logging.LoggerAdapter(
            logging.getLogger(f"sa_jobqueue.job.{job.type_name}"),
            {"job_id": str(job.id), "job_attempt": job.attempt, "job_type": job.type_name},
        )

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.job.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop: timed out, cancelled, lost, or the worker is shutting down.

        A long synchronous handler should check this regularly; an asynchronous one is cancelled at its next await. Later
        writes of its session are rolled back.
        """
        return self._stopped

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Reason why the attempt should stop; None if it should not."""
        return self._reason

    def wait_cancelled(self, timeout: timedelta) -> bool:
        """Wait until the attempt should stop, at most `timeout`; return whether it should. For synchronous handlers."""
        stopped = threading.Event()  # not created for every attempt, because few wait
        remove = self.on_stop(stopped.set)
        try:
            return stopped.wait(timeout.total_seconds())
        finally:
            remove()

    def on_stop(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when the attempt should stop, or now if it should already; return a function that removes it.

        It is called on the worker's event loop and must not block.
        """
        with self._callbacks_lock:
            if not self._stopped:
                self._callbacks.append(callback)
                return lambda: self._remove_callback(callback)
        callback()
        return lambda: None

    def _remove_callback(self, callback: Callable[[], None]) -> None:
        with self._callbacks_lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def extend(self, timeout: timedelta) -> None:
        """Replace the remaining time of the attempt by `timeout`, from now, but not beyond the job's deadline.

        It writes the job's row, which a transaction with an older snapshot cannot complete any more. So in a session at
        REPEATABLE READ or SERIALIZABLE, call it before the transaction's first statement, or set a longer timeout.
        Raises: InvalidOptionError unless above zero and at most 36,500 days, and in such a transaction.
        """
        check_duration("timeout", timeout)
        for level in list(self.snapshot_levels.values()):
            raise extension_refused(level)
        self.extension = self._extend(self, timeout)

    def progress(self, done: float, total: float | None = None, *, message: str | None = None) -> None:
        """Report the progress of the attempt; call it as often as you like: the next heartbeat writes the last report.

        `done`, `total`: in any unit, with `done` at most `total`; None if the total is unknown.
        `message`: at most 200 characters.
        """
        for name, value in (("done", done), ("total", done if total is None else total)):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _MOST_UNITS:  # nan is not, either
                raise InvalidOptionError(name, f"must be a number from 0 to 2^63 - 1, got {value!r}")
        if total is not None and done > total:
            raise InvalidOptionError("done", f"must be at most total, {total!r}, got {done!r}")
        if message is not None and (not isinstance(message, str) or len(message) > _LONGEST_MESSAGE):
            actual = f"{len(message)} characters" if isinstance(message, str) else repr(message)
            raise InvalidOptionError("message", f"must be a text of at most {_LONGEST_MESSAGE} characters, got {actual}")
        self.reported = (done, total, message)

    @overload
    def track(
        self, items: Iterable[ItemT], *, total: float | None = None, message: str | None = None
    ) -> Iterator[ItemT]: ...
    @overload
    def track(
        self, items: AsyncIterable[ItemT], *, total: float | None = None, message: str | None = None
    ) -> AsyncIterator[ItemT]: ...
    def track(self, items: Any, *, total: float | None = None, message: str | None = None) -> Any:
        """Return an iterator over `items` that reports each as done when the next one is requested.

        Use `async for` if they are asynchronous.
        `total`: by default `len(items)`, if there is a length.
        `message`: as in `progress`.
        Raises: as `progress`, before the first item.
        """
        if total is None and isinstance(items, Sized):
            total = len(items)
        self.progress(0, total, message=message)
        tracked = self._tracked_async if isinstance(items, AsyncIterable) else self._tracked
        return tracked(items, total, message)

    def _tracked(self, items: Iterable[ItemT], total: float | None, message: str | None) -> Iterator[ItemT]:
        for count, item in enumerate(items, 1):
            yield item
            self.reported = (count, total if total is None or count <= total else None, message)

    async def _tracked_async(
        self, items: AsyncIterable[ItemT], total: float | None, message: str | None
    ) -> AsyncIterator[ItemT]:
        count = 0
        async for item in items:
            yield item
            count += 1
            self.reported = (count, total if total is None or count <= total else None, message)

    @cached_property
    def _steps(self) -> Any:
        if self._open_steps is None:
            raise InvalidOptionError(
                "isolation",
                f"steps of {self.job.type_name!r} cannot be recorded here: a child process has no connection, so remove "
                'isolation="process" or continue_with a handler that has the steps; in tests, use `drain`',
            )
        return self._open_steps(self)

    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        key: str | int | None = None,
        output: type[ItemT],
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> Coroutine[Any, Any, ItemT]: ...
    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | int | None = None,
        output: type[ItemT],
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> ItemT: ...
    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., ItemT],
        *args: Any,
        key: str | int | None = None,
        output: None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> ItemT: ...
    def step(
        self,
        name: str,
        fn: Any,
        *args: Any,
        key: str | int | None = None,
        output: Any = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> Any:
        """Call `fn(*args)` once for the job and record its result; later attempts return the recorded result.

        In an asynchronous handler, await it: `draft = await ctx.step("draft", call_model, text)`. If the worker dies
        before the result is recorded, `fn` is called again. If `fn` raises, the attempt fails: even if the handler catches
        the error, no other step begins in this attempt, because a later one may get a result instead.

        `name`: 1 to 100 characters, unique in the job.
        `fn`: an asynchronous function in an asynchronous handler.
        `args`: its arguments.
        `key`: distinguishes the rounds of a loop.
        `output`: type of the result, by default `fn`'s annotation. It is stored like the job's output.
        `retry`: calls `fn` again: a function of (call, error) that returns a delay or None, or a `Backoff` for at most 5
        calls. A delay of more than a minute ends the attempt, which is not counted, and frees its slot.
        `timeout`: of each call, after which it is cancelled and raises TimeoutError, which `retry` and `catch` see as any
        other error; in asynchronous handlers only, as nothing interrupts a thread.
        `catch`: errors that are a result, such as `catch=CardDeclined`, after `retry`: recorded with their type, message
        and arguments, and raised again by later attempts without a call, as a class named here.
        Raises: the exceptions of `fn`; StepRefusedError after another step's error; DuplicateStepError;
        UnstorableOutputError, which makes the job a dead letter immediately; StepOutputError if a recorded result does not
        match the type, or a recorded error is no longer in `catch`; LostAttemptError; InvalidOptionError, including in a
        child process.
        """
        return self._steps.step(name, fn, args, key=key, output=output, retry=retry, timeout=timeout, catch=catch)

    def transaction(
        self,
        name: str,
        *,
        key: str | int | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> StepTransaction:
        """Return a context manager for a transaction whose effects and checkpoint are one commit.

        Use it in `async with ctx.transaction("charge") as session:`, or with `with` in a synchronous handler. The session
        is of the application's factory. It is None if an earlier attempt committed the step: begin the block with `if
        session is not None:`. The transaction commits only if the attempt still holds the job. Do not commit in the
        block, do not use the session after it, and do not change the same rows through the handler's own session.

        `name`, `key`, `catch`: as in `step`; with an error in `catch` the transaction is rolled back.
        Raises: the errors of the block; StepRefusedError, DuplicateStepError, StepOutputError, LostAttemptError,
        HandlerCommitError; InvalidOptionError, including in a child process.
        """
        opened: StepTransaction = self._steps.transaction(name, key=key, catch=catch)
        return opened

    @overload
    def cursor(
        self,
        name: str,
        items_after: Callable[[Any], AsyncIterable[ItemT]],
        *,
        position: Callable[[ItemT], Any],
        every: int = 1,
        key: str | int | None = None,
        output: Any = None,
    ) -> AsyncIterator[ItemT]: ...
    @overload
    def cursor(
        self,
        name: str,
        items_after: Callable[[Any], Iterable[ItemT]],
        *,
        position: Callable[[ItemT], Any],
        every: int = 1,
        key: str | int | None = None,
        output: Any = None,
    ) -> Iterator[ItemT]: ...
    def cursor(
        self,
        name: str,
        items_after: Any,
        *,
        position: Any,
        every: int = 1,
        key: str | int | None = None,
        output: Any = None,
    ) -> Any:
        """Return an iterator over items that later attempts continue where it was: a loop in one step.

        Use it in `for row in ctx.cursor("rows", rows_after, position=lambda row: row.id):`, or in `async for`.

        `items_after`: called once with the last recorded position, None at the start; returns the items after it, in order.
        `position`: returns the position of an item. It is recorded after each `every` items and at the end; after a crash
        at most that many rounds are repeated.
        `output`: type of the position, JSON by default.
        `name`, `key`: as in `step`.
        Raises: as `step`.
        """
        return self._steps.cursor(name, items_after, position=position, every=every, key=key, output=output)

    def sleep(self, name: str, duration: timedelta, *, key: str | int | None = None) -> Any:
        """End the attempt and continue after `duration`; an attempt that starts then passes the call.

        In an asynchronous handler, await it. It raises `Snooze`. Code before it runs again, unless it is in steps.

        `name`, `key`: as in `step`.
        `duration`: from zero to 36,500 days, by the database's clock.
        Raises: Snooze; DuplicateStepError, LostAttemptError; InvalidOptionError, including in batches and in a child
        process.
        """
        return self._steps.sleep(name, duration, key=key)

    def wait_for(
        self, name: str, *, event: str, timeout: timedelta, key: str | int | None = None, output: type[ItemT] | None = None
    ) -> Any:
        """Return the payload of an event, sent by `send_event`; until then the job waits without a slot.

        In an asynchronous handler, await it. If the event was not sent before, the attempt ends as in `sleep`; the next
        one begins after the sender's commit, or after `timeout`.

        `name`, `key`: as in `step`.
        `event`: 1 to 200 characters; several jobs may wait for the same.
        `timeout`: from zero to 36,500 days after the first call.
        `output`: type of the payload.
        Raises: EventTimeoutError, a TimeoutError; StepOutputError for a payload of another type; otherwise as `sleep`.
        """
        return self._steps.wait_for(name, event=event, timeout=timeout, key=key, output=output)

    def run(
        self,
        handler: Continues[InT, Any],
        payload: Any = None,
        /,
        *,
        name: str | None = None,
        key: str | int | None = None,
        output: type[ItemT] | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] | None = None,
        **options: Any,
    ) -> Any:
        """Return the result of another job, which is enqueued once; until it has ended, this job waits without a slot.

        In an asynchronous handler, await it; several under `asyncio.gather` run at the same time. The attempt ends as in
        `sleep`, uncounted; the next one begins after the other job's commit. That job is a separate chain: it stays if
        this one is cancelled.

        `handler`, `payload`: of the other job. `name`: of the step, by default the job type's; `key`: as in `step`.
        `output`: type of the result, by default that of the handler.
        `catch`: classes of errors with which the other job may die, such as `catch=CardDeclined`: raised here with its
        message, in later attempts as well. Any other death raises ChildFailedError.
        `options`: those of `handler.job`, without `deduplication_key`.
        Raises: the above; InvalidOptionError for an `ordering_key` that this job has, or one that waits for it: the other
        job would wait forever; otherwise as `sleep` and `handler.job`.
        """
        return self._steps.run(handler, payload, name=name, key=key, output=output, catch=catch, options=options)

    @overload
    def all(self, *requests: StepRequest[ItemT], return_exceptions: Literal[True]) -> Results[ItemT | Exception]: ...
    @overload
    def all(self, *requests: StepRequest[ItemT], return_exceptions: bool = False) -> Results[ItemT]: ...
    def all(self, *requests: StepRequest[Any], return_exceptions: bool = False) -> Any:
        """Return the results of several jobs, events and timers, in their order; until then this job waits without a slot.

        In an asynchronous handler, await it. All jobs are enqueued in one transaction: `ctx.all(*(ChildJob(ship, order,
        key=order.id) for order in orders))`. Their outputs are read from their rows, which retention leaves until this job
        has ended; how one died is recorded.

        `requests`: each with a name and key that are unique in the job.
        `return_exceptions`: return errors among the results, as `asyncio.gather` does; otherwise the first of them, in the
        order of `requests`, is raised when all have ended.
        Raises: as `run` and `wait_for`.
        """
        return self._steps.all(requests, return_exceptions=return_exceptions)

    @overload
    def first(
        self,
        name: str,
        first: StepRequest[FirstT],
        /,
        *,
        key: str | int | None = None,
        losers: Literal["cancel", "leave"] = "cancel",
    ) -> Winner[FirstT]: ...
    @overload
    def first(
        self,
        name: str,
        first: StepRequest[FirstT],
        second: StepRequest[SecondT],
        /,
        *,
        key: str | int | None = None,
        losers: Literal["cancel", "leave"] = "cancel",
    ) -> Winner[FirstT | SecondT]: ...
    @overload
    def first(
        self,
        name: str,
        first: StepRequest[FirstT],
        second: StepRequest[SecondT],
        third: StepRequest[ThirdT],
        /,
        *,
        key: str | int | None = None,
        losers: Literal["cancel", "leave"] = "cancel",
    ) -> Winner[FirstT | SecondT | ThirdT]: ...
    @overload
    def first(
        self,
        name: str,
        /,
        *requests: StepRequest[Any],
        key: str | int | None = None,
        losers: Literal["cancel", "leave"] = "cancel",
    ) -> Winner[Any]: ...
    def first(
        self,
        name: str,
        /,
        *requests: StepRequest[Any],
        key: str | int | None = None,
        losers: Literal["cancel", "leave"] = "cancel",
    ) -> Any:
        """Return which of several jobs, events and timers was first, with its result; until then this job takes no slot.

        In an asynchronous handler, await it: `winner = await ctx.first("decision", EventWait("approval", event=...),
        Timer("patience", timedelta(days=2)))`. The winner is recorded and stays: of several that are over, the first in the
        order of `requests`. An error of it, such as a timeout, is raised.

        `name`, `key`: of this step, as in `step`.
        `requests`: each with a name and key that are unique in the job.
        `losers`: "cancel" cancels the jobs among them that have not ended, with the jobs whose results they wait for;
        "leave" lets them go on.
        Raises: as `run` and `wait_for`.
        """
        return self._steps.first(name, requests, key=key, losers=losers)

    def continue_with(
        self,
        handler: Continues[NextInT, NextOutT],
        payload: NextInT = None,  # type: ignore[assignment]  # a keyword_handler takes fields instead
        /,
        **options: Any,
    ) -> Continuation[NextOutT]:
        """Return a continuation with another job, to be returned from the handler.


        `handler`: of the next job.
        `payload`: its payload; None if it takes none.
        `options`: those of `handler.job`.
        Raises: as `handler.job`; InvalidOptionError for anything but a handler.
        """
        target: Any = handler
        if not hasattr(target, "continuation"):
            reason = f"must be a handler, got a {type(target).__name__}: ctx.continue_with(handler, payload)"
            raise InvalidOptionError("handler", reason)
        return handler.continuation(payload, **options)

    def stop(self, reason: CancelReason) -> None:
        """Stop the attempt for a `reason`. Called by the worker; the first reason is kept."""
        with self._callbacks_lock:
            if self._stopped:
                return
            self._reason = reason
            self._stopped = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except BaseException:  # user code: must not prevent the other callbacks or the stop
                self.logger.exception("on_stop callback failed: %r", callback)


_CURRENT: ContextVar[AttemptContext | None] = ContextVar("sa_jobqueue_attempt", default=None)


def current_attempt() -> AttemptContext | None:
    """Return the current attempt; None outside an attempt.

    Available in the handler, its middleware and the code they call, and in tasks and threads that inherit the handler's
    context (`asyncio.create_task`, `asyncio.to_thread`).
    """
    return _CURRENT.get()


def enter_attempt(attempt: AttemptContext) -> None:
    """Make an attempt the current one of this task. Called by the worker."""
    _CURRENT.set(attempt)


def attempt_in(task: asyncio.Task[Any]) -> AttemptContext | None:
    """Return the attempt in the context of another `task`; None if there is none, and before Python 3.12."""
    get_context = getattr(task, "get_context", None)
    return None if get_context is None else get_context().get(_CURRENT)
