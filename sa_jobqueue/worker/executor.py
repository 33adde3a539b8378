"""Runs handlers: decodes the payload, calls the function, and hands its end to whoever writes it.

A handler that takes a session completes in that session's own commit; every other end goes to the completer.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import tracing
from sa_jobqueue.context import AttemptContext, ClaimedJob, Continuation, enter_attempt
from sa_jobqueue.encodings import Encoding
from sa_jobqueue.errors import AttemptTimeoutError, InvalidOutputError, LostAttemptError
from sa_jobqueue.events import AttemptLost, EventBus, JobCompleted, JobStarted, MiddlewareFailed
from sa_jobqueue.fair_keys import whole
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.completing import attach, complete_attempt
from sa_jobqueue.registry import JobType, Registry
from sa_jobqueue.statements import blockers
from sa_jobqueue.types import JobId
from sa_jobqueue.worker.batching import Batches
from sa_jobqueue.worker.completer import Completer
from sa_jobqueue.worker.extending import Extender
from sa_jobqueue.worker.isolation import Children
from sa_jobqueue.worker.lending import lent, lent_beside, load_blockers
from sa_jobqueue.worker.linking import Linker
from sa_jobqueue.worker.middleware import surround
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.outcomes import Completed, RetryOf, failed, released
from sa_jobqueue.worker.running import Running
from sa_jobqueue.worker.sessions import HELD, NAMED, Sessions
from sa_jobqueue.worker.settler import Settler
from sa_jobqueue.worker.threads import Threads

Result: TypeAlias = str | JobMixin[Any]
"""What a handler returned: JSON text, or the next job of its chain."""


class Executor:
    """Holds the running attempts of a worker, at most `concurrency`."""

    def __init__(
        self,
        *,
        registry: Registry,
        model: type[JobMixin[Any]],
        engine: AsyncEngine,
        sessions: Sessions,
        completer: Completer,
        settler: Settler,
        events: EventBus,
        worker_id: str,
        options: WorkerOptions,
        children: Children,
        retry_of: RetryOf,
    ) -> None:
        self._registry = registry
        self._model = model
        self._settler = settler
        self._engine, self._sessions = engine, sessions
        self._completer = completer
        self._events = events
        self._worker_id = worker_id
        self._options = options
        self._children, self._retry_of = children, retry_of
        self._blockers = blockers.outcomes(model)
        self._linker = Linker(engine, model)
        self.concurrency = options.concurrency
        """How many attempts it may run at once."""
        self._threads = Threads(options.concurrency, "sa_jobqueue")
        self._batches = Batches(self, model, sessions, self._threads, worker_id=worker_id, stop_grace=options.stop_grace)
        self._running: set[Running] = set()
        self._extender = Extender(
            engine,
            model,
            worker_id=worker_id,
            grace=options.time_to_live,
            is_running=self._running.__contains__,
            set_deadline=self._set_deadline,
            stop=self.stop,
        )
        self._by_queue: Counter[str] = Counter()
        self._by_type: Counter[str] = Counter()
        self._stuck_threads = 0
        self._loop = asyncio.get_running_loop()
        self._background: set[asyncio.Task[Any]] = set()
        self.encoding: Encoding | None = None
        """The database's, where it is not UTF-8."""
        self.given_back = 0
        """How many attempts were given back unfinished."""
        self.changed = asyncio.Event()
        """Set whenever a slot becomes free."""

    @property
    def free(self) -> int:
        """How many more jobs may be started; a thread that does not stop keeps its slot."""
        return self.concurrency - len(self._running) - self._stuck_threads

    def free_in(self, queue: str) -> int:
        """How many more jobs of a limited queue may be started."""
        limit = self._options.limits.get(queue)
        return self.free if limit is None else min(self.free, limit - self._by_queue[queue])

    def free_for(self, type_name: str) -> int:
        """How many more jobs of a type with `concurrency` of its own may be started."""
        limit = self._registry.get(type_name).concurrency
        return self.free if limit is None else min(self.free, limit - self._by_type[type_name])

    @property
    def attempts(self) -> set[tuple[JobId, int]]:
        """The attempts that are running here, as `(job_id, attempt)`."""
        return {(running.job.id, running.job.attempt) for running in self._running}

    @property
    def running(self) -> int:
        """How many attempts are running."""
        return len(self._running)

    @property
    def running_by_type(self) -> dict[str, int]:
        """How many attempts are running of each type, without types of which none is. May be asked from any thread."""
        return {name: count for name, count in dict(self._by_type).items() if count}  # a copy: the loop goes on meanwhile

    @property
    def has_stuck_threads(self) -> bool:
        """Whether handlers that were told to stop still occupy threads."""
        return self._stuck_threads > 0

    def resize(self, concurrency: int) -> None:
        """Run at most so many attempts from now on. Those that run already go on: fewer take their places."""
        self.concurrency = concurrency
        self._threads.resize(concurrency)
        self.changed.set()

    def start(self, job: ClaimedJob) -> None:
        """Run a claimed job in a task of its own."""
        running = Running(job)
        running.context = AttemptContext(job, self._worker_id, partial(self._request_extension, running))
        self._running.add(running)
        self._by_queue[whole(job.queue)] += 1
        self._by_type[job.type_name] += 1
        running.task = self._loop.create_task(self._run(running), name=job.type_name)

    def stop_lost(self, attempts: Collection[tuple[JobId, int]]) -> None:
        """Stop attempts of jobs that were cancelled or taken away; nothing is written for them."""
        for running in list(self._running):
            if (running.job.id, running.job.attempt) in attempts:
                self.stop(running, "lost", "the job was cancelled or taken away")

    def release_all(self, reason: str) -> None:
        """Stop every attempt and give its job back, not counted."""
        for running in list(self._running):
            self.stop(running, "released", reason)

    def stop(self, running: Running, kind: str, reason: str) -> None:
        """Stop an attempt, unless it is told already: `lost`, `released` or `expired`."""
        if running.stopping is None:
            running.stopping = kind
            running.context.stop(reason)
            if running.begun:
                running.task.cancel()

    def _set_deadline(self, running: Running, timeout: timedelta) -> None:
        if running.deadline is not None:
            running.deadline.cancel()
        running.timeout = timeout
        reason = "the attempt ran past its timeout"
        running.deadline = self._loop.call_later(timeout.total_seconds(), self.stop, running, "expired", reason)

    async def idle(self) -> None:
        """Wait until no attempt is running."""
        while self._running:
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        """Let go of the threads; those that do not stop are left behind."""
        self._threads.close()

    async def _run(self, running: Running) -> None:
        try:
            await self._end(running)
        finally:
            if running.deadline is not None:
                running.deadline.cancel()
            self._running.discard(running)
            self._by_queue[whole(running.job.queue)] -= 1
            self._by_type[running.job.type_name] -= 1
            self.changed.set()

    async def _end(self, running: Running) -> None:
        """Run the attempt and hand its end to whoever writes it."""
        job = running.job
        job_type: JobType | None = None
        try:
            running.begun = True
            if running.stopping is not None:
                raise asyncio.CancelledError
            running.started = self._loop.time()
            enter_attempt(running.context)
            self._events.begin(running.context)
            job_type = self._registry.get(job.type_name)
            if job.timeout is not None and not job_type.isolated:  # whose time begins when a child has it
                self._set_deadline(running, job.timeout)
            if tracing.is_recording():
                await self._linker.link(job, job_type)
            result = await (self._surrounded if job_type.middleware else self._attempt)(running, job_type)
        except asyncio.CancelledError as error:
            if running.stopping == "lost":
                self._events.emit(AttemptLost(job.id, job.type_name, job.attempt))
            elif running.stopping == "expired":
                timeout = AttemptTimeoutError(running.timeout or timedelta(0))
                self._fail(running, timeout, job_type)
            elif running.stopping == "released" or _is_cancelled():
                self._completer.put(released(job))
                self.given_back += 1
                if running.stopping is None:
                    raise  # the worker itself is being cancelled, which must pass
            else:
                # Something the handler awaited was cancelled, not the attempt: a failure like any other.
                self._fail(running, error, job_type)
        except LostAttemptError as error:
            if (error.job_id, error.attempt) == (job.id, job.attempt):
                self._events.emit(AttemptLost(job.id, job.type_name, job.attempt))
            else:  # of some other attempt: the handler's own business, and its failure
                self._fail(running, error, job_type)
        # User code ends here, and so does everything it can raise: a handler's sys.exit() is its own failure.
        except (Exception, SystemExit) as error:
            self._fail(running, error, job_type)
        else:
            ran = timedelta(seconds=self._loop.time() - running.started)
            if result is None:
                self._events.emit(JobCompleted(job.id, job.type_name, job.attempt, ran))
            else:
                self._completer.put(Completed(job, result, ran))

    def _fail(self, running: Running, error: BaseException, job_type: JobType | None) -> None:
        ran = timedelta(seconds=self._loop.time() - running.started)
        self._completer.put(failed(running.context, error, job_type, ran=ran, default=self._retry_of(running.job.queue)))

    async def _attempt(self, running: Running, job_type: JobType) -> Result | None:
        """Decode the input and call the handler; return its result, or None when its commit completed the job."""
        job = running.job
        # In a child the decoding, which is user code as well, is the child's.
        decodes = job_type.takes_input and not job_type.isolated
        arguments = [job_type.decode(job.input, job.input_version)] if decodes else []
        if self._events.hears(JobStarted):
            self._events.emit(JobStarted(job.id, job.type_name, job.attempt))
        if job_type.is_bare:  # one coroutine instead of three
            return self.encode(running, await job_type.func(*arguments, **self._injected(running, job_type)), job_type)
        if job_type.blockers is not None:
            running.blockers = await load_blockers(self._engine, self._blockers, job, job_type)
        if job_type.isolated:
            begin, extend = partial(self._set_deadline, running), partial(self._extender.extend, running)
            return await self._children.call(job, running.context, job_type, running.blockers, begin=begin, extend=extend)
        if job_type.batch is not None:
            return await self._batches.call(running, job_type, *arguments)
        return await (self._call_async if job_type.is_async else self._call_in_thread)(running, job_type, arguments)

    async def _surrounded(self, running: Running, job_type: JobType) -> Result | None:
        """Do the same within the middleware of the job's type."""
        results: list[Result | None] = []

        async def attempt() -> None:
            results.append(await self._attempt(running, job_type))

        try:
            await surround(job_type.middleware, running.context, attempt)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if results != [None]:
                raise
            # The handler's own commit has completed the job: it is too late to fail, or to be stopped.
            job = running.job
            self._events.emit(MiddlewareFailed(job.id, job.type_name, job.attempt, error))
        return results[0]

    async def _call_async(self, running: Running, job_type: JobType, arguments: list[Any]) -> Result | None:
        """Call an async handler; return its result, or None when its session's commit completed the job."""
        if job_type.session_argument is None:
            return self.encode(running, await self._awaited(running, job_type, arguments), job_type)
        session: AsyncSession
        async with self._sessions.open_async() as session:
            session.info.update({HELD: True, NAMED: running.job.id})
            returned = await self._awaited(running, job_type, arguments, **{job_type.session_argument: session})
            session.info.pop(NAMED, None)
            result = self.encode(running, returned, job_type)
            ended = await session.run_sync(
                complete_attempt, running.job, result, worker_id=self._worker_id, model=self._model
            )
            following = result.queue if isinstance(result, JobMixin) else None  # before the commit expires it
            session.info[HELD] = False
            commit = self._keep(session.commit())
            try:
                await asyncio.shield(commit)
            except asyncio.CancelledError:
                # Told to stop while the server was deciding: wait for its answer, for it is the one that counts.
                await asyncio.wait({commit})
                if commit.exception() is not None:
                    raise
        self.committed(following, ended)
        return None

    async def _call_in_thread(self, running: Running, job_type: JobType, arguments: list[Any]) -> Result | None:
        """Call a sync handler in a thread; otherwise as `_call_async`. One that does not stop is left behind."""
        call = self._threads.run(partial(contextvars.copy_context().run, self._call_sync, running, job_type, arguments))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # Timed out, released or lost: the thread is told, and has a moment to notice.
            running.context.stop("the attempt ran past its timeout")
            done, _ = await asyncio.wait({call}, timeout=self._options.stop_grace.total_seconds())
            if not done:
                self.leave_behind(call)
            elif call.exception() is None and job_type.session_argument is not None:
                return call.result()  # it had committed before it could be told
            raise

    def leave_behind(self, call: asyncio.Future[Any]) -> None:
        """Go on without a thread that does not stop: until it does, it takes a slot."""
        self._stuck_threads += 1
        call.add_done_callback(self._thread_came_back)

    def _thread_came_back(self, call: asyncio.Future[Any]) -> None:
        self._stuck_threads -= 1
        call.exception()  # whatever it is, the attempt has ended without it
        self.changed.set()

    def _call_sync(self, running: Running, job_type: JobType, arguments: list[Any]) -> Result | None:
        try:
            return self._call_handler(running, job_type, arguments)
        except KeyboardInterrupt as error:
            # A real one comes to the main thread alone; this is the handler's own, and must not stop the loop.
            raise RuntimeError("the handler raised KeyboardInterrupt") from error

    def _call_handler(self, running: Running, job_type: JobType, arguments: list[Any]) -> Result | None:
        if job_type.session_argument is None:
            return self.encode(running, self._called(running, job_type, arguments), job_type)
        session: Session
        with self._sessions.open_sync() as session:
            session.info.update({HELD: True, NAMED: running.job.id})
            returned = self._called(running, job_type, arguments, **{job_type.session_argument: session})
            session.info.pop(NAMED, None)
            result = self.encode(running, returned, job_type)
            ended = complete_attempt(session, running.job, result, worker_id=self._worker_id, model=self._model)
            if running.context.cancelled:
                raise LostAttemptError(running.job.id, running.job.attempt)
            following = result.queue if isinstance(result, JobMixin) else None  # before the commit expires it
            session.info[HELD] = False
            session.commit()
        self._loop.call_soon_threadsafe(self.committed, following, ended)
        return None

    def committed(self, following: str | None, ended: JobId | None) -> None:
        """Look after what a handler's own commit has set going: the next job's queue, a chain that others wait for."""
        if ended is not None:
            self._settler.put(ended)
        if following is not None:
            self._settler.tell_due(following)

    async def _awaited(self, running: Running, job_type: JobType, arguments: list[Any], **session: Any) -> Any:
        given = self._injected(running, job_type) | session
        if not job_type.provided:
            return await job_type.func(*arguments, **given)
        async with lent_beside(running.context, job_type, self._threads) as provided:
            return await job_type.func(*arguments, **given, **provided)

    def _called(self, running: Running, job_type: JobType, arguments: list[Any], **session: Any) -> Any:
        with lent(running.context, job_type) as provided:
            return job_type.func(*arguments, **self._injected(running, job_type), **provided, **session)

    def _injected(self, running: Running, job_type: JobType) -> dict[str, Any]:
        given: dict[str, Any] = {} if job_type.context_argument is None else {job_type.context_argument: running.context}
        if job_type.blockers_argument is not None:
            given[job_type.blockers_argument] = running.blockers
        return given

    def encode(self, running: Running, returned: Any, job_type: JobType) -> Result:
        """Return what a handler returned as what is written of it. Raises: InvalidOutputError, InvalidJobError."""
        if isinstance(returned, Continuation):
            return attach(self._model, running.job, returned, job_type)
        if returned is None and job_type.output.declared is Any:
            return "null"  # what most handlers return; nothing to check
        output = job_type.output.encode_output(returned)
        if self.encoding is not None and (fault := self.encoding.fault_in(output)) is not None:
            raise InvalidOutputError(f"the handler's return value is not usable: output {fault}")
        return json.dumps(output)

    def _request_extension(self, running: Running, timeout: timedelta) -> None:
        # From the handler's thread or task: everything that matters happens on the loop.
        self._loop.call_soon_threadsafe(self._keep, self._extender.extend(running, timeout))

    def _keep(self, coroutine: Any) -> asyncio.Task[Any]:
        # The loop holds tasks weakly; one that nobody awaits is held here until it is done.
        task: asyncio.Task[Any] = self._loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
