"""Runs the steps of one attempt: results of earlier attempts are returned, the rest is called and recorded."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import shlex
import time
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final, NoReturn, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue.context import AttemptContext, EventWait, StepTransaction
from sa_jobqueue.db.blocking import blocking, blocking_items
from sa_jobqueue.db.splitting import sqlstate
from sa_jobqueue.errors import (
    AttemptSignal,
    ChildFailedError,
    CompletionRefusedError,
    DuplicateStepError,
    EventTimeoutError,
    InvalidOptionError,
    InvalidPayloadError,
    LostAttemptError,
    Snooze,
    StepBlockedError,
    StepOutputError,
    StepRefusedError,
    UnstorableOutputError,
)
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.events import StepCompleted
from sa_jobqueue.models.event import check_event
from sa_jobqueue.operations.completions import Finished, finish_parameters
from sa_jobqueue.operations.steps import record_step, record_transaction
from sa_jobqueue.operations.writer import by_session, write_one
from sa_jobqueue.payloads import Codec, Document, sealed
from sa_jobqueue.policies.retry import Backoff, RetryPolicy
from sa_jobqueue.registry.annotations import AnnotationError, return_hint
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import blockers, chains, completions, steps
from sa_jobqueue.types import AttemptOutcome, JobStatus, StepKind
from sa_jobqueue.worker.run.guard import Guard, backend_pid, guard
from sa_jobqueue.worker.run.own_locks import OwnLocks
from sa_jobqueue.worker.run.sessions import Sessions
from sa_jobqueue.worker.run.step_failures import Caught, check_catch, failure_document, rebuilt
from sa_jobqueue.worker.shared import Shared

T = TypeVar("T")
Watching = Callable[[Callable[[], int | None]], AbstractContextManager[None]]
Place = tuple[str, str]
"""Name and key of a step."""

_LONGEST_NAME: Final = 100
_LONGEST_KEY: Final = 500
_OUTAGES: Final = frozenset({"08", "25", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATE of errors that pass: lost connections, deadlocks, full disks, timeouts, shutdowns, a standby."""
_REST: Final = timedelta(seconds=1)
"""How long to wait before a write is tried again after such an error."""
_MOST_CALLS: Final = 5
"""Of a step with a `Backoff`."""
_LONGEST_PAUSE: Final = timedelta(minutes=1)
"""Up to this delay of a retry an attempt keeps its slot; a longer one ends it."""
_PAUSE: Final = timedelta(milliseconds=20)
"""How long to wait for a sender's transaction, before the next look."""
_FOREVER: Final = timedelta(days=36500)
"""How long a job waits for the result of another one, which wakes it."""
_OTHER_KINDS: Final = {StepKind.STEP: (StepKind.FAILURE, StepKind.RETRY), StepKind.TRANSACTION: (StepKind.FAILURE,)}
"""Kinds of records that a call finds beside its own kind: a declared error, and a failure after which it is repeated."""
UNSENT: Final = object()
"""The answer of a look for an event that was not sent."""
_enclosing: ContextVar[int] = ContextVar("sa_jobqueue_enclosing_steps", default=0)
"""Number of steps that the running code is called by."""
_outer_guards: ContextVar[tuple[Guard, ...]] = ContextVar("sa_jobqueue_outer_guards", default=())
"""Guards of the `ctx.transaction` blocks that the running code stands in."""


class Suspended(Snooze):
    """Ends an attempt whose end is written already: its job waits for an event."""

    def __init__(self, end: Finished) -> None:
        super().__init__(None if end.at else end.delay, at=end.at)
        self.end = end


class _CalledLater(Exception):  # noqa: N818 - not an error
    """A step has failed, and is called again after a delay that is too long to keep the slot."""

    def __init__(self, calls: int, delay: timedelta) -> None:
        super().__init__(calls, delay)
        self.calls, self.delay = calls, delay


class Busy(Exception):  # noqa: N818 - not an error
    """A sender's transaction is open: look again after it."""


class WorkerSteps:
    """The store of a worker: its own connections, each statement a transaction, and the application's sessions."""

    def __init__(self, shared: Shared, engine: AsyncEngine, sessions: Sessions) -> None:
        self.model, self._events, self.registry = shared.model, shared.events, shared.jobs.registry
        self._engine, self._transactions = engine, engine.execution_options(isolation_level="READ COMMITTED")
        self._sessions, self._loop = sessions, asyncio.get_running_loop()
        self.own_locks: OwnLocks | None = OwnLocks(self.model, engine, self._loop)
        """None where all statements have one connection, which does not wait for itself."""

    async def call(
        self, work: Callable[[Any], T], *, is_async: bool, in_transaction: bool = False, watching: Watching | None = None
    ) -> T:
        """Call a function with a connection that commits each statement, or all of them together.

        `watching`: makes a context manager for it, of a function that returns the connection's server process.
        A synchronous handler's thread waits for the worker's loop.
        """

        async def call() -> T:
            async with self._transactions.begin() if in_transaction else self._engine.connect() as connection:
                if watching is None:
                    result: T = await connection.run_sync(work)
                    return result
                with watching(lambda: None if (sync := connection.sync_connection) is None else backend_pid(sync)):
                    return await connection.run_sync(work)

        return await call() if is_async else self._result(call())

    def _result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if not self._loop.is_running():  # a thread that was left behind may outlive the worker
            coroutine.close()
            raise RuntimeError("the worker has stopped: its attempts record no more steps")
        with suppress(RuntimeError):  # without a loop here, which is right
            if asyncio.get_running_loop() is self._loop:  # it would wait for itself
                coroutine.close()
                where = "on the worker's event loop, by a middleware or a dependency: call it in the handler, in its thread"
                raise InvalidOptionError("step", f"is called {where}")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def is_outage(self, error: DBAPIError) -> bool:
        """Return whether the write may succeed later."""
        state = sqlstate(error)
        return isinstance(error, OperationalError | InterfaceError) if state is None else state[:2] in _OUTAGES

    def session(self, context: AttemptContext, *, is_async: bool) -> tuple[Any, Guard]:
        """Return a session that the application's factory makes, and its guard."""
        if context.transactions:
            self._sessions.check_spare(is_async=is_async)
        session = self._sessions.factory(is_async=is_async)()
        session_guard = guard(session, [context])
        session_guard.is_of_step = True
        return session, session_guard

    def begin(self, session: Session) -> None:
        """Do nothing: the first statement begins it."""

    def commit(self, session: Session) -> None:
        """Commit the transaction of a session."""
        session.commit()

    def close(self, session: Session) -> None:
        """Close a session; without a commit its transaction is rolled back."""
        session.close()

    def emit(self, event: StepCompleted) -> None:
        """Tell the worker's subscribers on its loop: synchronous handlers call this in their threads."""
        if self._events.has_subscribers(StepCompleted):
            with suppress(RuntimeError):  # the loop of a worker that has stopped is closed
                self._loop.call_soon_threadsafe(self._events.emit, event)


class AttemptSteps:
    """The steps of one attempt."""

    def __init__(self, store: WorkerSteps, context: AttemptContext) -> None:
        self._store = store
        self._context = context
        self._type: JobType = store.registry.get(context.job.type_name)
        # A first attempt has nothing to read, but a wait for an event may have begun with its job.
        self._recorded: dict[Place, Any] | None = {} if context.attempt == 1 and not self._type.is_event else None
        self._entered: set[Place] = set()
        self._has_warned = False
        self._failure: tuple[Place, Exception] | None = None
        """The first step that raised an error which its call does not declare."""
        self._begun = 0
        """Number of steps whose calls have not been recorded yet."""
        self._children: dict[Place, Any] = {}
        """Jobs whose results the attempt waits for."""
        self._step_recorded = asyncio.Event()
        self._ending = asyncio.Lock()
        """Held by a wait or a sleep that may end the attempt."""

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        key: str | int | None,
        output: Any,
        retry: RetryPolicy | None,
        timeout: timedelta | None,
        catch: Any,
    ) -> Any:
        """Return the result of a step: of an asynchronous handler, a coroutine."""
        if not callable(fn):
            raise InvalidOptionError("fn", f"must be a function, got {fn!r}")
        if not self._type.is_async and inspect.iscoroutinefunction(fn):
            raise InvalidOptionError(
                "fn", f"must be a plain function, because {self._type.place} is one; {_name_of(fn)} is asynchronous"
            )
        if retry is not None and not callable(retry):
            raise InvalidOptionError("retry", f"must be a Backoff or a function of (call, error), got {retry!r}")
        call = partial(fn, *args)
        if timeout is not None:
            check_duration("timeout", timeout)
            if not self._type.is_async:
                raise InvalidOptionError(
                    "timeout",
                    f"is not possible in {self._type.place}: nothing interrupts the thread of a plain function",
                )
            call = partial(_within, timeout, call)
        codec, caught = codec_of(name, fn, output), check_catch(catch)
        place = self._enter(name, key)
        return self._run(self._step(place, call, codec, retry, caught))

    def _run(self, call: Coroutine[Any, Any, T]) -> Any:
        """Return an awaitable for an asynchronous handler, or the result."""
        return call if self._type.is_async else blocking(call)

    async def _step(
        self, place: Place, call: Callable[[], Any], codec: Codec[Any], retry: RetryPolicy | None, catch: Caught
    ) -> Any:
        async with self._in_progress():
            earlier_calls = 0
            if (step_record := await self._find(place, StepKind.STEP)) is not None:
                if step_record.kind == StepKind.FAILURE:
                    raise self._recorded_failure(place, step_record.output, catch)
                if step_record.kind == StepKind.STEP:
                    return self._decode(place, codec, step_record.output)
                earlier_calls = self._decode(place, _cached(dict[str, Any]), step_record.output)["calls"]
            self._stop_if_cancelled()
            began, later = time.monotonic(), None
            try:
                document = self._encode(place, codec, await self._called(call, retry, earlier_calls))
            except _CalledLater as reason:
                later = reason
            except Exception as error:
                await self._record_failure(place, error, catch, began)
                raise
            else:
                await self._write(StepKind.STEP, place, document.text, took=_since(began))
        if later is not None:
            await self._call_later(place, later)
        self._report(StepKind.STEP, place, began)
        return self._decode(place, codec, json.loads(document.text))  # the same value as in later attempts

    async def _call_later(self, place: Place, later: _CalledLater) -> NoReturn:
        """End the attempt without counting it, until the step is called again."""
        await self._let_others_begin()
        async with self._alone():
            await self._wait_for_others(place)
            document = self._encode(place, _cached(dict[str, Any]), {"calls": later.calls})
            until = await self._write(StepKind.RETRY, place, document.text, took=later.delay)
            self._context.suspended = Snooze(at=until)
            raise self._context.suspended

    async def _called(self, call: Callable[[], Any], retry: RetryPolicy | None, earlier_calls: int) -> Any:
        """Return the result of the function of a step, called again as its retry policy decides."""
        calls = earlier_calls + 1
        while True:
            try:
                returned = call()
                return await returned if self._type.is_async and inspect.isawaitable(returned) else returned
            except Exception as error:
                delay = self._delay(retry, calls, error)
                if delay is None:
                    raise
                if delay > _LONGEST_PAUSE and self._type.batch is None:
                    raise _CalledLater(calls, delay) from error
                await self._pause(delay)
                calls += 1

    async def _record_failure(self, place: Place, error: Exception, catch: Caught, began: float) -> None:
        """Record an error that the step declares and raise it as later attempts do; after another one no step begins."""
        document = failure_document(error, catch)
        if document is None:
            if self._context.suspended is None and self._failure is None:
                self._failure = place, error
            return
        stored = self._encode(place, _cached(dict[str, Any]), document)
        await self._write(StepKind.FAILURE, place, stored.text, took=_since(began))
        self._report(StepKind.FAILURE, place, began)
        raise self._recorded_failure(place, json.loads(stored.text), catch) from error

    def _recorded_failure(self, place: Place, stored: Any, catch: Caught) -> Exception:
        document = self._decode(place, _cached(dict[str, Any]), stored)
        error = rebuilt(document, catch)
        if error is not None:
            return error
        reason = f"is recorded as failed with {document['type']}: {document['message']}; `catch` no longer names that class"
        return StepOutputError(*place, reason)

    @asynccontextmanager
    async def _in_progress(self) -> AsyncIterator[None]:
        """Count a step as begun until it is recorded, so that no step beside it ends the attempt meanwhile."""
        async with self._alone():  # such a step may be ending it now
            self._begun += 1
        token = _enclosing.set(_enclosing.get() + 1)
        try:
            yield
        finally:
            _enclosing.reset(token)
            self._begun -= 1
            if self._type.is_async:
                self._step_recorded.set()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Let no other step of the attempt begin meanwhile. Raises: the signal with which another has ended the attempt."""
        is_beside_others = self._type.is_async and not _enclosing.get()  # within a step, that one holds its place
        async with self._ending if is_beside_others else nullcontext():
            if is_beside_others and self._context.suspended is not None:
                raise self._context.suspended
            yield

    def _has_others(self) -> bool:
        """Return whether steps run beside the running code."""
        return self._type.is_async and self._begun > _enclosing.get()

    async def _let_others_begin(self) -> None:
        """Let the steps begin that the handler has called together with a wait or a sleep."""
        if self._type.is_async:
            await asyncio.sleep(0)

    async def _wait_for_others(self, place: Place) -> None:
        """Wait until the steps that run beside this one are recorded: an attempt that ends before would call them again."""
        while self._has_others():
            self._step_recorded.clear()
            await self._step_recorded.wait()
        self._refuse_after_failure(place)

    def _refuse_after_failure(self, place: Place) -> None:
        """Refuse a step after one whose error is not recorded, which would run again and could end otherwise."""
        if self._failure is None:
            return
        failed_place, error = self._failure
        self._context.suspended = error  # so that the attempt fails with it, whatever the handler catches
        raise StepRefusedError(shown(place), shown(failed_place), type(error).__name__, str(error)) from error

    def _watching(self, place: Place) -> Watching | None:
        """Return what finds out that a statement of a step waits for the handler's session, or for a block around it.

        None if there is no such session.
        """
        context, outer = self._context, _outer_guards.get()
        if not (outer or context.transactions or self._type.signature.session_argument):
            return None
        if (own_locks := self._store.own_locks) is None:
            return None

        def holders() -> list[int]:
            guards = [guard for guard in list(context.transactions) if not guard.is_of_step or guard in outer]
            return [guard.backend_pid for guard in guards if guard.backend_pid is not None]

        return lambda waiter: own_locks.watching(context, shown(place), waiter, holders)

    async def _pause(self, delay: timedelta) -> None:
        if self._type.is_async:
            await asyncio.sleep(delay.total_seconds())
        elif self._context.wait_cancelled(delay):
            raise LostAttemptError(self._context.job.id, self._context.attempt)

    def _stop_if_cancelled(self) -> None:
        """End the attempt of a synchronous handler, which nothing else interrupts: steps are good places to stop at."""
        if not self._type.is_async and self._context.cancelled:
            raise LostAttemptError(self._context.job.id, self._context.attempt)

    def _delay(self, retry: RetryPolicy | None, calls: int, error: Exception) -> timedelta | None:
        """Return the delay before a step is called again; None if its error ends the attempt."""
        is_over = isinstance(retry, Backoff) and calls >= _MOST_CALLS
        if retry is None or is_over or isinstance(error, AttemptSignal) or self._context.suspended is not None:
            return None
        delay = retry(calls, error)
        if delay is not None:
            check_duration("retry", delay, or_zero=True)
            self._context.logger.warning("call %d of a step failed, called again in %s", calls, delay, exc_info=error)
        return delay

    def transaction(self, name: str, *, key: str | int | None, catch: Any) -> StepTransaction:
        """Return the context manager of a step that is a transaction: its effects and its checkpoint commit together."""
        caught = check_catch(catch)
        return _Transaction(partial(self._transaction, self._enter(name, key), caught))

    @asynccontextmanager
    async def _transaction(self, place: Place, catch: Caught, *, is_async: bool) -> AsyncIterator[Any]:
        if is_async != self._type.is_async:
            word, kind = ("async with", "async") if self._type.is_async else ("with", "not async")
            raise InvalidOptionError("transaction", f"must be entered by `{word}`, because {self._type.place} is {kind}")
        async with self._in_progress():
            if (step_record := await self._find(place, StepKind.TRANSACTION)) is None:
                async with self._new_transaction(place, catch, is_async=is_async) as session:
                    yield session
            elif step_record.kind == StepKind.FAILURE:
                raise self._recorded_failure(place, step_record.output, catch)
            else:
                yield None

    @asynccontextmanager
    async def _new_transaction(self, place: Place, catch: Caught, *, is_async: bool) -> AsyncIterator[Any]:
        began, store = time.monotonic(), self._store
        session, session_guard = store.session(self._context, is_async=is_async)

        async def on_session(work: Callable[[Session], None]) -> None:
            if is_async:
                await self._uninterrupted(session.run_sync(work))
            else:
                work(session)

        def commit(session: Session) -> None:
            session.flush()  # first, so that the job is locked for a moment only
            job, worker_id = self._context.job, self._context.worker_id
            try:
                with session_guard.explaining_extensions():
                    was_hidden = record_transaction(
                        session,
                        store.model,
                        job,
                        worker_id,
                        place=place,
                        took=_since(began),
                        session_name=session_guard.name,
                    )
            except CompletionRefusedError:
                session_guard.discard_connections()
                raise
            if was_hidden:
                session_guard.discard_connections()
            session_guard.may_commit = True
            store.commit(session)
            self._report(StepKind.TRANSACTION, place, began)

        error: Exception | None = None
        watching = self._watching(place) or nullcontext
        token = _outer_guards.set((*_outer_guards.get(), session_guard))
        try:
            with watching(lambda: session_guard.backend_pid):
                with session_guard:
                    await on_session(store.begin)
                    yield session
                await on_session(commit)
        except Exception as raised:
            error = raised
        finally:
            _outer_guards.reset(token)
            await on_session(store.close)
            session_guard.close()
        if error is not None:
            await self._record_failure(place, error, catch, began)
            raise error

    def cursor(
        self,
        name: str,
        items_after: Callable[[Any], Any],
        *,
        position: Callable[[Any], Any],
        every: int,
        key: str | int | None,
        output: Any,
    ) -> Any:
        """Return an iterator over items that continues after the last position recorded; in async handlers, an async one."""
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidOptionError("every", f"must be a whole number, at least 1, got {every!r}")
        codec, place = codec_of(name, None, output), self._enter(name, key)
        items = self._cursor(place, codec, items_after, position, every)
        return items if self._type.is_async else blocking_items(items)

    async def _cursor(
        self, place: Place, codec: Codec[Any], items_after: Any, position: Callable[[Any], Any], every: int
    ) -> AsyncGenerator[Any, None]:
        at, is_done = await self._reached(place, codec)
        began, number = time.monotonic(), 0
        if is_done:
            return
        async for item in _asynchronous(items_after(at)):
            yield item  # its round of the loop has ended when the next item is asked for
            at, number = position(item), number + 1
            if number % every == 0:
                await self._write(StepKind.CURSOR, place, self._position(place, codec, at), took=_since(began))
                self._stop_if_cancelled()
        await self._write(StepKind.CURSOR, place, self._position(place, codec, at, is_done=True), took=_since(began))
        self._report(StepKind.CURSOR, place, began)

    async def _reached(self, place: Place, codec: Codec[Any]) -> tuple[Any, bool]:
        """Return the position that earlier attempts have reached, None at the start, and whether that was the end."""
        step_record = await self._find(place, StepKind.CURSOR)
        if step_record is None:
            return None, False
        stored = self._decode(place, _cached(dict[str, Any]), step_record.output)
        if stored["position"] is None:
            return None, stored["is_done"]
        return self._converted(place, codec, stored["position"], "position"), stored["is_done"]

    def _position(self, place: Place, codec: Codec[Any], at: Any, *, is_done: bool = False) -> str:
        try:
            position = None if at is None else codec.encode("position", at)
        except InvalidPayloadError as error:
            raise UnstorableOutputError(f"the position of cursor {shown(place)} is not usable: {error}") from error
        return self._encode(place, _cached(dict[str, Any]), {"position": position, "is_done": is_done}).text

    def sleep(self, name: str, duration: timedelta, *, key: str | int | None) -> Any:
        """End the attempt unless the job has slept for so long: of an asynchronous handler, a coroutine."""
        check_duration("duration", duration, or_zero=True)
        self._refuse_in_batch("sleep")
        return self._run(self._sleep(self._enter(name, key), duration))

    async def _sleep(self, place: Place, duration: timedelta) -> None:
        step_record = await self._find(place, StepKind.SLEEP)
        if step_record is not None and step_record.is_over:
            return
        await self._let_others_begin()
        async with self._alone():
            await self._wait_for_others(place)
            until = (
                await self._write(StepKind.SLEEP, place, None, took=duration)
                if step_record is None
                else step_record.completed_at
            )
            self._context.suspended = Snooze(at=until)
            raise self._context.suspended

    def wait_for(self, name: str, *, event: str, timeout: timedelta, key: str | int | None, output: Any) -> Any:
        """Return the payload of an event, or end the attempt: of an asynchronous handler, a coroutine."""
        check_event(event)
        check_duration("timeout", timeout, or_zero=True)
        self._refuse_in_batch("wait_for")
        codec = codec_of(name, None, output)
        return self._run(self._wait(self._enter(name, key), codec, event, timeout))

    async def _wait(self, place: Place, codec: Codec[Any], event: str, timeout: timedelta) -> Any:
        step_record = await self._find(place, StepKind.WAIT)
        while step_record is None or not step_record.is_over:
            with suppress(Busy):
                looking = partial(self._looking, place, codec, step_record, event, timeout)
                look = partial(self._look, place)
                await self._let_others_begin()
                # A step beside this one may wait for the event: only if it was not sent is the step waited for.
                answer = await look(looking(may_end=False)) if self._has_others() else UNSENT
                if answer is UNSENT:
                    async with self._alone():
                        await self._wait_for_others(place)
                        answer = await look(looking(may_end=True))
                        if isinstance(answer, Suspended):
                            self._context.suspended = answer
                if isinstance(answer, Suspended | EventTimeoutError):
                    raise answer
                return answer
            await self._pause(_PAUSE)
        if not step_record.has_output:
            raise EventTimeoutError(event, *place)
        return self._decode(place, codec, step_record.output)

    async def _look(self, place: Place, looking: Callable[[Any], Any]) -> Any:
        return await self._called_store(place, looking, in_transaction=True)

    async def _called_store(self, place: Place, write: Callable[[Any], T], *, in_transaction: bool = False) -> T:
        """Return the result of a write on a connection of the worker; after a refused one no step begins."""
        call = partial(self._store.call, is_async=self._type.is_async, in_transaction=in_transaction)
        if (watching := self._watching(place)) is not None:
            call = partial(call, watching=watching)
        try:
            return await self._uninterrupted(call(write))
        except StepBlockedError as error:
            self._failure = self._failure or (place, error)
            raise

    def _looking(
        self, place: Place, codec: Codec[Any], step_record: Any, event: str, timeout: timedelta, *, may_end: bool
    ) -> Callable[[Any], Any | EventTimeoutError | Suspended]:
        """Return a function that looks for the event, and records and returns the payload, the timeout, or that the job
        waits, with the attempt's end; `UNSENT` in place of the last unless `may_end`.

        A sender is shut out meanwhile: it has committed before, or finds the job waiting.
        """
        model = self._store.model
        wait = partial(self._record, kind=StepKind.WAIT, place=place, took=timeout, event=event)

        def look(connection: Any) -> Any:
            self._lock_roots(set(), connection)  # first: who holds the job may be about to send the event
            if not connection.execute(steps.lock_event(model), {"event": event}).scalar_one():
                raise Busy
            request = EventWait[Any](place[0], event=event, timeout=timeout)
            answer = self._arrived(place, codec, step_record, request, connection)
            if answer is not UNSENT or not may_end:
                return answer
            deadline = wait(connection, is_over=False)
            end = Finished(self._context.job, JobStatus.PENDING, AttemptOutcome.SNOOZED, at=deadline, uncounted=True)
            parameters = finish_parameters([end], worker_id=self._context.worker_id, model=model)
            if connection.execute(completions.finish(model), parameters).first() is None:  # the chain's root is locked
                raise Busy
            return Suspended(end)

        return look

    def _arrived(
        self, place: Place, codec: Codec[Any], step_record: Any, request: EventWait[Any], connection: Any
    ) -> Any | EventTimeoutError:
        """Record and return the payload of an event, or the timeout; `UNSENT` for neither. Obliges: its name is locked."""
        event = request.event
        wait = partial(self._record, connection, kind=StepKind.WAIT, place=place, took=request.timeout, event=event)
        since = None if step_record is None else step_record.started_at
        row = connection.execute(steps.event_sent(self._store.model), {"event": event, "since": since}).one()
        if row.name is not None:
            try:
                value = codec.decode("payload", row.payload)
            except InvalidPayloadError as error:
                reason = f"waits for event {event!r}, whose payload is no {codec.name}: {error}"
                command = f"sa-jobqueue events send {shlex.quote(event)} PAYLOAD --replace"
                advice = f"Replace the event by one with a payload that fits: {command}"
                raise StepOutputError(*place, reason, advice=advice) from error
            wait(output=self._sealed(row.payload), is_over=True)
            return value
        if step_record is not None and step_record.deadline is not None and step_record.deadline <= row.now:
            wait(is_over=True)
            return EventTimeoutError(event, *place)
        return UNSENT

    def run(
        self, handler: Any, payload: Any, *, name: str | None, key: str | int | None, output: Any, catch: Any, options: Any
    ) -> Any:
        """Return the result of another job, or end the attempt: of an asynchronous handler, a coroutine."""
        check_child("run", handler, options)
        self._refuse_in_batch("run")
        caught = check_catch(catch)
        child = self._new_child(handler, payload, options)
        child.has_waiters = True
        name = handler.job_type.name[:_LONGEST_NAME] if name is None else name
        codec = handler.job_type.chain_output if output is None else codec_of(name, None, output)
        return self._run(self._run_child(self._enter(name, key), child, codec, handler.job_type, caught))

    def _new_child(self, handler: Any, payload: Any, options: dict[str, Any]) -> Any:
        child = handler.job(*(() if payload is None else (payload,)), **options)
        child._inherit_deadline(self._context.job.deadline)
        return child

    async def _run_child(self, place: Place, child: Any, codec: Codec[Any], child_type: JobType, catch: Caught) -> Any:
        async with self._in_progress():
            step_record = await self._find(place, StepKind.RUN)
            if step_record is None:
                await self._called_store(place, partial(self._enqueue_child, place, child), in_transaction=True)
                child_id = child.id
            else:
                child_id = step_record.child_chain_id
            if step_record is not None and step_record.is_over:
                result = self._type.open("output", step_record.output)
            else:
                self._children[place] = child_id
                result = await self._look_for_result(place, child_id, child_type, may_end=False)
        if result is None:
            result = await self._awaited(place, partial(self._result_of, place, child_id, child_type, True))
        self._children.pop(place, None)
        return self._value_of(place, codec, catch, child_id, result)

    async def _awaited(self, place: Place, look: Callable[[Any], Any]) -> Any:
        """Return the answer of a look, in one transaction, which ends the attempt if there is nothing to return yet."""
        while True:
            await self._let_others_begin()
            async with self._alone():
                await self._wait_for_others(place)
                with suppress(Busy):
                    answer = await self._look(place, look)
                    if isinstance(answer, Suspended):
                        self._context.suspended = answer
                        raise answer
                    return answer
            await self._pause(_PAUSE)

    def _value_of(self, place: Place, codec: Codec[Any], catch: Caught, child_id: Any, result: dict[str, Any]) -> Any:
        """Return the output of another job. Raises: its error, as a class in `catch`; ChildFailedError."""
        if result["status"] == JobStatus.COMPLETED:
            return self._converted(place, codec, result["output"], "result")
        error = {"type": result["type"], "message": result["message"], "arguments": None}
        if (declared := rebuilt(error, catch)) is not None:
            raise declared
        raise ChildFailedError(
            shown(place), child_id, result["status"], error_type=result["type"], message=result["message"]
        )

    def _enqueue_child(self, place: Place, child: Any, connection: Any) -> None:
        """Enqueue a job and record that its result is waited for, in one transaction."""
        self._refuse_keys_of_ancestors(place, [child], connection)
        by_session(write_one, connection, child)
        self._record(connection, kind=StepKind.RUN, place=place, child_chain_id=child.id, is_over=False)

    def _refuse_keys_of_ancestors(self, place: Place, children: list[Any], connection: Any) -> None:
        keys = sorted({child.ordering_key for child in children if child.ordering_key is not None})
        parameters = {"job_id": self._context.job.id, "ordering_keys": keys}
        ancestor = connection.execute(steps.ancestor_of_keys(self._store.model), parameters).first() if keys else None
        if ancestor is not None:
            raise InvalidOptionError(
                "ordering_key",
                f"of the job of step {shown(place)} is {ancestor.ordering_key!r}, as of this job or one that waits for it: "
                "jobs of one key run one after the other, so it would wait forever. Give it another key, or none",
            )

    async def _look_for_result(self, place: Place, child_id: Any, child_type: JobType, *, may_end: bool) -> Any:
        looking = partial(self._result_of, place, child_id, child_type, may_end)
        return await self._called_store(place, looking, in_transaction=True)

    def _result_of(self, place: Place, child_id: Any, child_type: JobType, may_end: bool, connection: Any) -> Any:
        """Record and return how a chain ended, or that the job waits for it, with the attempt's end; None for neither.

        The root is locked: the chain has ended before, or its end finds the job waiting.
        """
        roots = {child_id, *self._children.values()} if may_end else {child_id}
        rows = self._lock_roots(roots, connection)
        ended = {row.id: row.ended for row in rows}
        if ended.get(child_id, True):
            return self._record_child(place, child_id, child_type, connection)
        return self._end_waiting(roots, rows, connection) if may_end else None

    def _lock_roots(self, roots: set[Any], connection: Any) -> Any:
        job = self._context.job
        ids = sorted({job.id, job.chain_id, *roots}, key=str)
        return connection.execute(chains.lock(self._store.model), {"ids": ids}).all()

    def _record_child(self, place: Place, child_id: Any, child_type: JobType, connection: Any) -> dict[str, Any]:
        """Record and return how a chain ended, whose root is locked, or that it was not found."""
        rows = connection.execute(steps.child_results(self._store.model), {"ids": [child_id]}).all()
        result = end_of_child(child_id, rows[0] if rows else None, child_type)
        over = {"child_chain_id": child_id, "is_over": True, "output": self._sealed(result)}
        self._record(connection, kind=StepKind.RUN, place=place, **over)
        return result

    def _sealed(self, stored: Any) -> str:
        return sealed("output", Document(stored, json.dumps(stored)), self._type.codec).text

    def _end_waiting(self, roots: set[Any], rows: Any, connection: Any, *, at: datetime | None = None) -> Suspended:
        """End the attempt until one of the chains ends, or until an instant. Obliges: the roots are locked, as in `rows`."""
        model, job = self._store.model, self._context.job
        if unmarked := [row.id for row in rows if row.id in roots and not row.ended and not row.has_waiters]:
            connection.execute(blockers.await_chains(model), {"ids": unmarked})
        # Of the others, one may have ended after its own look.
        has_ended = not {row.id for row in rows if not row.ended} >= roots
        delay = timedelta(0) if has_ended or at is not None else _FOREVER
        until = None if has_ended else at
        end = Finished(job, JobStatus.PENDING, AttemptOutcome.SNOOZED, delay=delay, at=until, uncounted=True)
        parameters = finish_parameters([end], worker_id=self._context.worker_id, model=model)
        if connection.execute(completions.finish(model), parameters).first() is None:
            raise LostAttemptError(job.id, job.attempt)
        return Suspended(end)

    def _refuse_in_batch(self, call: str) -> None:
        if self._type.batch is not None:
            raise InvalidOptionError(call, f"is not possible in {self._type.place}: a batch cannot wait for one of its jobs")

    def _record(self, connection: Session | Connection, **step: Any) -> datetime:
        return record_step(connection, self._store.model, self._context.job, self._context.worker_id, **step)

    def _report(self, kind: StepKind, place: Place, began: float) -> None:
        job = self._context.job
        self._store.emit(StepCompleted(job.id, job.type_name, job.attempt, kind, *place, _since(began)))

    async def _write(self, kind: StepKind, place: Place, output: str | None, *, took: timedelta) -> datetime:
        """Write a record, as `record_step`; an outage delays it, so that the recorded call is not repeated."""
        record = partial(self._record, kind=kind, place=place, output=output, took=took)
        while True:
            try:
                return await self._called_store(place, record)
            except DBAPIError as error:
                if not self._store.is_outage(error):
                    raise
                await self._pause(_REST)

    async def _uninterrupted(self, write: Coroutine[Any, Any, T]) -> T:
        """Await a write; if the attempt is stopped meanwhile, await the answer first: the write happened, or not."""
        if not self._type.is_async:
            return await write
        task = asyncio.ensure_future(write)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # the attempt has ended without it
            raise

    def _enter(self, name: str, key: str | int | None) -> Place:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise InvalidOptionError("name", f"must be 1 to {_LONGEST_NAME} printable characters, got {name!r}")
        text = "" if key is None else str(key)
        is_known = key is None or (isinstance(key, str | int) and not isinstance(key, bool) and text)
        if not is_known or len(text) > _LONGEST_KEY or not (text or "-").isprintable():
            raise InvalidOptionError(
                "key", f"must be a whole number or 1 to {_LONGEST_KEY} printable characters, got {key!r}"
            )
        if self._context.suspended is not None:  # the handler has caught it and goes on
            raise self._context.suspended
        self._refuse_after_failure((name, text))
        if (name, text) in self._entered:
            raise DuplicateStepError(name, text)
        self._entered.add((name, text))
        return name, text

    async def _find(self, place: Place, kind: StepKind) -> Any:
        """Return the record of a step by an earlier attempt; None if it has to run.

        Raises: StepOutputError for another kind.
        """
        if self._recorded is None:
            read, parameters = steps.recorded(self._store.model), {"job_id": self._context.job.id}
            rows = await self._store.call(
                lambda connection: connection.execute(read, parameters).all(), is_async=self._type.is_async
            )
            self._recorded = {(row.name, row.key): row for row in rows}
        step_record = self._recorded.get(place)
        if step_record is not None and step_record.kind not in {kind, *_OTHER_KINDS.get(kind, ())}:
            raise StepOutputError(*place, f"is recorded as a {step_record.kind}, but the handler now calls it as a {kind}")
        uncalled_steps = () if step_record is not None or self._has_warned else self._recorded.keys() - self._entered
        if uncalled_steps:  # no error: the handler may take another branch, such as after a step that raised
            self._has_warned = True
            self._context.logger.warning(
                "step %s is new, and an earlier attempt recorded steps that were not called: %s. If one was renamed, it "
                "runs again: give it its recorded name",
                shown(place),
                ", ".join(sorted(map(shown, uncalled_steps))[:5]),
            )
        return step_record

    def _encode(self, place: Place, codec: Codec[Any], value: Any) -> Document:
        try:
            return sealed("output", codec.document("output", value), self._type.codec)
        except InvalidPayloadError as error:
            raise UnstorableOutputError(f"the result of step {shown(place)} is not usable: {error}") from error

    def _decode(self, place: Place, codec: Codec[Any], stored: Any) -> Any:
        return self._converted(place, codec, self._type.open("output", stored), "result")

    def _converted(self, place: Place, codec: Codec[Any], stored: Any, noun: str) -> Any:
        try:
            return codec.decode("output", stored)
        except InvalidPayloadError as error:
            upcaster = self._type.step_upcasters.get(place[0])
            try:
                if upcaster is not None:
                    return codec.decode("output", upcaster(stored))
            except Exception as of_upcaster:
                reason = f"has a recorded {noun} from which its upcaster makes no {codec.name}: {of_upcaster!r}"
                raise StepOutputError(*place, reason) from of_upcaster
            raise StepOutputError(*place, f"has a recorded {noun} that is no {codec.name}: {error}") from error


class _Transaction(StepTransaction):
    """The same transaction for `with` and for `async with`."""

    _opened: AbstractAsyncContextManager[Any]

    def __init__(self, opened: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
        self._open = opened

    def __enter__(self) -> Session | None:
        self._opened = self._open(is_async=False)
        return typing.cast("Session | None", blocking(self._opened.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        blocking(self._opened.__aexit__(*error))

    async def __aenter__(self) -> AsyncSession | None:
        self._opened = self._open(is_async=True)
        return typing.cast("AsyncSession | None", await self._opened.__aenter__())

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)


async def _asynchronous(items: Any) -> AsyncIterator[Any]:
    """Yield items of an iterable, asynchronous or not."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def _within(timeout: timedelta, call: Callable[[], Any]) -> Any:
    """Return the result of a call that is cancelled after `timeout`. Raises: TimeoutError."""
    async with asyncio.timeout(timeout.total_seconds()):
        returned = call()
        return await returned if inspect.isawaitable(returned) else returned


def check_child(call: str, handler: Any, options: dict[str, Any]) -> None:
    """Check a job that a step enqueues. Raises: InvalidOptionError."""
    if not hasattr(handler, "job_type"):
        reason = f"must be a handler, got a {type(handler).__name__}: ctx.{call}(handler, payload)"
        raise InvalidOptionError("handler", reason)
    if options.get("deduplication_key") is not None:
        raise InvalidOptionError(
            "deduplication_key", f"cannot be set for `ctx.{call}`: the step enqueues its job once, and waits for that one"
        )


def end_of_child(child_id: Any, row: Any, child_type: JobType) -> dict[str, Any]:
    """Return how a chain ended as it is recorded. `row`: of `steps.child_results`, None if there is none."""
    if row is None:
        message = f"the worker's connection found no job of id {child_id}: it was deleted, or the role of the connection "
        return {"status": None, "type": None, "message": f"{message}does not see it (row-level security)"}
    if row.status is JobStatus.COMPLETED:
        return {"status": str(row.status), "output": child_type.open("output", row.output)}
    error = row.error if isinstance(row.error, dict) else {}
    return {"status": str(row.status), "type": error.get("type"), "message": error.get("message")}


def _since(began: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - began)


def shown(place: Place) -> str:
    """Return a step's name and key for a message."""
    return repr(place[0]) + (f" with key {place[1]!r}" if place[1] else "")


def _name_of(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def codec_of(name: str, fn: Callable[..., Any] | None, output: Any) -> Codec[Any]:
    """Return the codec of a step's result: of the type given, or of the function's annotation.

    Raises: InvalidOptionError for a type that cannot be stored.
    """
    declared = output if output is not None else Any if fn is None else _returned(name, fn)
    declared = Any if declared is type(None) else declared
    try:
        return _cached(declared) if isinstance(declared, typing.Hashable) else Codec(declared)
    except Exception as error:  # any error that Pydantic raises for a type it does not support
        raise InvalidOptionError(
            "output", f"of step {name!r} cannot be {declared!r}: {error}. Return JSON or a type of data, or pass output="
        ) from error


@lru_cache(1000)
def _cached(declared: Any) -> Codec[Any]:
    return Codec(declared)


def _returned(name: str, fn: Any) -> Any:
    """Return the annotation of a function's return value; Any where there is none."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not isinstance(fn, types.FunctionType | types.MethodType):
        return Any
    try:
        hint = return_hint(fn)
    except AnnotationError as error:
        raise InvalidOptionError("output", f"of step {name!r} is needed: {_name_of(fn)}: {error}") from error
    is_awaitable = typing.get_origin(hint) in {Awaitable, Coroutine}
    return typing.get_args(hint)[-1] if is_awaitable else hint
