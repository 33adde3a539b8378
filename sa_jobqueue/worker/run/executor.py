"""Runs handlers: decodes the payload, calls the function, and passes its result on to be written.

A handler that takes a session completes in that session's own commit; every other end goes to the completer.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import tracing
from sa_jobqueue.context import AttemptContext, ClaimedJob, Continuation, attempt_in, enter_attempt
from sa_jobqueue.db.forks import LeaveIfForked
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.errors import AttemptTimeoutError, LostAttemptError
from sa_jobqueue.events import AttemptLost, EventBus, JobCancelled, JobCompleted, JobStarted, MiddlewareFailed
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.completing import attach, complete_attempt, ended_by_handler
from sa_jobqueue.policies.fairness import queue_key_of
from sa_jobqueue.printable import printable
from sa_jobqueue.registry.job_types import JobType, Registry
from sa_jobqueue.statements import blockers, completions, leases
from sa_jobqueue.types import ENDED, LOST, CancelReason, JobId, JobStatus
from sa_jobqueue.worker.escapes import contained, original
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.outcomes import Completed, RetryOf, broken, failed, released
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.run.batches import Batches
from sa_jobqueue.worker.run.dependencies import load_blockers, open_dependencies, open_dependencies_in_thread
from sa_jobqueue.worker.run.extending import Extender
from sa_jobqueue.worker.run.isolation import Children
from sa_jobqueue.worker.run.middleware import surround
from sa_jobqueue.worker.run.running import Running
from sa_jobqueue.worker.run.sessions import Sessions, guard
from sa_jobqueue.worker.run.span_links import Linker
from sa_jobqueue.worker.run.steps import AttemptSteps, Suspended, WorkerSteps
from sa_jobqueue.worker.run.threads import Threads

_log: Final = logging.getLogger("sa_jobqueue.worker")

_IS_EAGER: Final = sys.version_info >= (3, 12)

Result: TypeAlias = str | JobMixin[Any]
"""What a handler returned: JSON text, or a continuation of its chain."""


class Executor:
    """Holds the running attempts of a worker, at most `concurrency`."""

    def __init__(
        self,
        *,
        registry: Registry,
        model: type[JobMixin[Any]],
        engine: AsyncEngine,
        steps_engine: AsyncEngine,
        sessions: Sessions,
        completer: Completer,
        unblocker: Unblocker,
        events: EventBus,
        worker_id: str,
        options: WorkerOptions,
        children: Children,
        retry_of: RetryOf,
        on_ended: Callable[[JobId], None],
    ) -> None:
        self._registry = registry
        self._model = model
        self._unblocker = unblocker
        self._engine, self._sessions = engine, sessions
        self._completer = completer
        self._events = events
        self._worker_id = worker_id
        self._options = options
        self._children, self._retry_of, self._on_ended = children, retry_of, on_ended
        self._blockers = blockers.outcomes(model)
        self._holders, self._still_held = leases.holders(model), completions.still_held(model)
        self._linker = Linker(engine, model)
        self.concurrency = options.concurrency
        """How many attempts it may run at once."""
        self._threads = Threads(options.concurrency, "sa_jobqueue")
        self._batches = Batches(
            self, model, sessions, self._threads, worker_id=worker_id, cancel_timeout=options.cancel_timeout
        )
        self._running: set[Running] = set()
        self._extender = Extender(
            engine,
            model,
            worker_id=worker_id,
            grace=options.heartbeat_timeout,
            is_running=self._running.__contains__,
            set_deadline=self._set_deadline,
            on_lost=self._stop_if_lost,
        )
        self._by_queue: Counter[str] = Counter()
        self._by_type: Counter[str] = Counter()
        self.stuck_threads = 0
        """How many threads are occupied by handlers of attempts that have ended."""
        self._leave_if_forked = LeaveIfForked()
        self._is_shutting_down = False
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.current_task()
        self._steps = WorkerSteps(steps_engine, model, registry, sessions, self._loop)
        self._doubtful: set[str] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self.given_back = 0
        """How many attempts were given back unfinished."""
        self.changed = asyncio.Event()
        """Set whenever a slot becomes free."""

    @property
    def free(self) -> int:
        """How many more jobs may be started; a thread that does not stop keeps its slot."""
        return self.concurrency - len(self._running) - self.stuck_threads

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
        """Number of running attempts by job type, without zeros. Thread-safe."""
        return {name: count for name, count in dict(self._by_type).items() if count}  # a copy: the loop may change it

    def job_in(self, task: asyncio.Task[Any]) -> tuple[ClaimedJob | None, str]:
        """Return the job that a task runs, or that started it, and its handler; None if there is none. Thread-safe.

        Source: a task's context is known since Python 3.12; until then tasks that handlers start are not recognised.
        """
        running = next((running for running in list(self._running) if running.task is task), None)
        attempt = running.context if running else attempt_in(task)
        name = attempt.job.type_name if attempt else task.get_name()  # a batch's task is called as its type
        return attempt.job if attempt else None, self._registry.get(name).place if name in self._registry else ""

    def progress(self) -> dict[str, Any]:
        """Return what the running attempts have reported, by job id. May be asked from any thread.

        A heartbeat writes it, which must not fail because of a text: what the database cannot store is escaped.
        """
        found: dict[str, Any] = {}
        for running in self._running.copy():  # a copy: the loop may change it
            if (reported := running.context.reported) is None:
                continue
            done, total, message = reported
            found[str(running.job.id)] = {
                "attempt": running.job.attempt,
                "done": done,
                "total": total,
                "message": None if message is None else printable(message),
            }
        return found

    def resize(self, concurrency: int) -> None:
        """Run at most this many attempts from now on. Running ones are not stopped."""
        self.concurrency = concurrency
        self._threads.resize(concurrency)
        self.changed.set()

    def start(self, job: ClaimedJob) -> None:
        """Run a claimed job in a task of its own."""
        running = Running(job)
        running.context = AttemptContext(job, self._worker_id, self._request_extension, steps=self._open_steps)
        if self._is_shutting_down:  # by an attempt of the same claim, which has begun already
            running.stopping = CancelReason.SHUTDOWN
        self._running.add(running)
        self._by_queue[job.queue] += 1
        self._by_type[job.type_name] += 1
        running.task = _begun(self._loop, self._run(running), job.type_name)

    def stop_lost(self, attempts: Collection[tuple[JobId, int]]) -> None:
        """Stop attempts that this worker has lost, each with its reason; nothing is written for them."""
        for running in list(self._running):
            if (running.job.id, running.job.attempt) in attempts:
                self.verify(str(running.job.id))

    def verify(self, job_id: str) -> None:
        """Check in the database whether a running job was ended or rescued, and stop its attempt if so."""
        if any(str(running.job.id) == job_id for running in self._running):
            is_first = not self._doubtful
            self._doubtful.add(job_id)
            if is_first:
                self._keep(self._verify())

    async def _stop_if_lost(self, job_id: JobId) -> None:
        """Do the same and wait for it, before something starts that must not start for a lost attempt."""
        self._doubtful.add(str(job_id))
        await self._verify()

    async def _verify(self) -> None:
        """Read the state of doubtful jobs in batches until the database answers; stop attempts that are lost.

        A notification is only a hint: anybody who may connect can send one.
        """
        while self._doubtful:
            doubtful = [running for running in self._running if str(running.job.id) in self._doubtful]
            self._doubtful.clear()
            try:
                async with self._engine.connect() as connection:
                    result = await connection.execute(self._holders, {"ids": [running.job.id for running in doubtful]})
                    rows = {row.id: row for row in result}
            except (SQLAlchemyError, OSError):  # an outage, or a pool that is busy; attempts may well outlive it
                self._doubtful |= {str(running.job.id) for running in doubtful}
                await asyncio.sleep(1)
                continue
            for running in doubtful:
                reason = self._reason(running.job, rows.get(running.job.id))
                if reason is not None:
                    self.stop(running, reason)

    def _reason(self, job: ClaimedJob, row: Any) -> CancelReason | None:
        if row is None:
            return CancelReason.DELETED
        if row.status is JobStatus.CANCELLED:
            return CancelReason.CANCELLED
        if row.status is JobStatus.COMPLETED:
            return CancelReason.COMPLETED
        is_ours = row.status is JobStatus.RUNNING and (row.attempt, row.leased_by) == (job.attempt, self._worker_id)
        return None if is_ours else CancelReason.LEASE_LOST

    async def still_held(self, attempts: Iterable[ClaimedJob]) -> set[JobId]:
        """Return the jobs whose attempts this worker still holds, by what is committed."""
        attempts = list(attempts)
        given = {"ids": [job.id for job in attempts], "attempts": [job.attempt for job in attempts]}
        async with self._engine.connect() as connection:
            return set(await connection.scalars(self._still_held, given | {"worker_id": self._worker_id}))

    def release_all(self, reason: CancelReason) -> None:
        """Stop all attempts and release their jobs, not counted as attempts; at a shutdown also those that start later."""
        self._is_shutting_down = self._is_shutting_down or reason is CancelReason.SHUTDOWN
        for running in list(self._running):
            self.stop(running, reason)

    def stop(self, running: Running, reason: CancelReason) -> None:
        """Stop an attempt, unless it is stopping already."""
        if running.stopping is None:
            running.stopping = reason
            running.context.stop(reason)
            if running.begun:
                running.task.cancel()

    def _set_deadline(self, running: Running, timeout: timedelta) -> None:
        if running.deadline is not None:
            running.deadline.cancel()
        running.timeout = timeout
        running.deadline = self._loop.call_later(timeout.total_seconds(), self.stop, running, CancelReason.TIMED_OUT)

    async def idle(self) -> None:
        """Wait until no attempt is running."""
        while self._running:
            self.changed.clear()
            await self.changed.wait()

    async def close(self) -> None:
        """Stop the background tasks and release the threads; threads that do not stop are left behind."""
        await cancelled(*self._background)
        self._threads.close()

    async def _run(self, running: Running) -> None:
        """Run the attempt and pass its result on to be written."""
        if _IS_EAGER and (task := asyncio.current_task()) is not None:
            running.task = task  # who begins it may know it only after the handler has returned
        job = running.job
        job_type: JobType | None = None
        try:
            try:
                running.begun = True
                if running.stopping is not None:
                    raise asyncio.CancelledError
                running.started = time.monotonic()
                enter_attempt(running.context)
                self._events.begin(running.context)
                job_type = self._registry.get(job.type_name)
                if job.timeout is not None and not job_type.isolated:  # whose time begins when a child has it
                    self._set_deadline(running, job.timeout)
                if tracing.is_recording():
                    await self._linker.link(job, job_type)
                with job_type.around_attempt():
                    result = await (self._surrounded if job_type.middleware else self._attempt)(running, job_type)
            # User code ends here, and so does everything that it can raise.
            except BaseException as error:
                self._end_by(running, error, job_type)
            else:
                if result is None:
                    self._report_ended(running)
                else:
                    self._completer.put(Completed(job, result, time.monotonic() - running.started))
        except asyncio.CancelledError:
            raise  # the worker itself is being cancelled, which must pass
        except BaseException as error:  # a bug of ours: it must neither lose the attempt nor end the loop
            _log.exception("the end of an attempt could not be decided job_id=%s", job.id)
            self._completer.put(broken(job, error))
        finally:
            if running.deadline is not None:
                running.deadline.cancel()
            self._running.discard(running)
            self._by_queue[job.queue] -= 1
            self._by_type[job.type_name] -= 1
            self.changed.set()

    def _end_by(self, running: Running, error: BaseException, job_type: JobType | None) -> None:
        """End an attempt with an exception. Everything except a stop is a failure and counts, if the fence allows it."""
        job, reason, suspended = running.job, running.stopping, running.context.suspended
        if running.ended is not None:  # too late: the handler has already committed the end
            self._report_ended(running)
        elif isinstance(suspended, Suspended):  # so has the step that waits, whatever the handler did then
            self._completer.report(replace(suspended.end, ran=self._ran(running)))
        elif not isinstance(error, asyncio.CancelledError) or (reason is None and not self._is_worker_cancelled()):
            # Not stopped by this worker: the handler cancelled its own task, or awaited something that was cancelled.
            self._fail(running, error, job_type)
        elif reason is CancelReason.TIMED_OUT:
            self._fail(running, AttemptTimeoutError(running.timeout or timedelta(0)), job_type)
        elif reason in LOST:
            self._on_ended(job.id)
            self._events.emit(AttemptLost(job.id, job.type_name, job.attempt))
        else:
            self._completer.put(released(job))
            self.given_back += 1
            if reason is None:
                raise error

    def _is_worker_cancelled(self) -> bool:
        """Whether the task that runs the worker is being cancelled, as when its loop ends: then all tasks are."""
        return self._worker is not None and (self._worker.cancelling() > 0 or self._worker.done())

    def _report_ended(self, running: Running) -> None:
        """Report an end that the handler's own commit has written."""
        job = running.job
        kind = JobCompleted if running.ended in {None, JobStatus.COMPLETED} else JobCancelled
        self._on_ended(job.id)
        self._events.emit(kind(job.id, job.type_name, job.attempt, self._ran(running)))

    def _ran(self, running: Running) -> timedelta:
        # Not the loop's clock: uvloop's counts milliseconds.
        return timedelta(seconds=time.monotonic() - running.started)

    def _fail(self, running: Running, error: BaseException, job_type: JobType | None) -> None:
        running.context.error = original(error)
        default = self._retry_of(running.job.queue, running.job.fairness_key)
        self._completer.put(failed(running.context, error, job_type, ran=self._ran(running), default=default))

    async def _attempt(self, running: Running, job_type: JobType) -> Result | None:
        """Decode the input and call the handler; return its result, or None when its commit completed the job."""
        job = running.job
        try:
            # In a child the decoding, which is user code as well, is the child's.
            decodes = job_type.takes_input and not job_type.isolated
            arguments = [job_type.decode(job.input, job.input_version)] if decodes else []
            if self._events.has_subscribers(JobStarted):
                self._events.emit(JobStarted(job.id, job.type_name, job.attempt))
            if job_type.is_bare and not job_type.registry.surroundings():  # one coroutine instead of three
                return self.encode(running, await job_type.func(*arguments, **self._injected(running, job_type)), job_type)
            if job_type.blockers is not None:
                running.blockers = await load_blockers(self._engine, self._blockers, job, job_type)
            if job_type.isolated:
                begin, extend = partial(self._set_deadline, running), partial(self._extender.extend, running)
                call = self._children.call
                return await call(job, running.context, job_type, running.blockers, begin=begin, extend=extend)
            if job_type.batch is not None:
                return await self._batches.call(running, job_type, *arguments)
            return await (self._call_async if job_type.is_async else self._call_in_thread)(running, job_type, arguments)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # before it reaches a task of a middleware, whose loop it would end
            raise contained(error) from error

    async def _surrounded(self, running: Running, job_type: JobType) -> Result | None:
        """Do the same within the middleware of the job's type."""
        results: list[Result | None] = []

        async def attempt() -> None:
            results.append(await self._attempt(running, job_type))

        try:
            await surround(job_type.middleware, running.context, attempt)
        except BaseException as error:
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
        async with self._sessions.open(job_type) as session:
            held = guard(session.sync_session, running.job.id)
            with held:
                returned = await self._awaited(running, job_type, arguments, **{job_type.session_argument: session})
            job, status = running.job, JobStatus.COMPLETED
            result = self.encode(running, returned, job_type)
            given: dict[str, Any] = {"model": self._model, "session_name": held.name}
            try:
                ended = await session.run_sync(complete_attempt, job, result, worker_id=self._worker_id, **given)
                # Before the commit expires it.
                following = queue_key_of(result.queue, result.fairness_key) if isinstance(result, JobMixin) else None
            except LostAttemptError:
                if job.id not in await self.still_held([job]):
                    raise
                # No other transaction changed it, so the handler did, in this one: its change stands.
                ended = following = None
                status = (await session.run_sync(ended_by_handler, [job.id], **given))[job.id]
                if status not in ENDED:
                    raise
            held.may_commit = True
            commit = self._keep(session.commit())
            try:
                await asyncio.shield(commit)
            except asyncio.CancelledError:
                # Stopped during the commit: wait for the server's answer, because it decides.
                await asyncio.wait({commit})
                if commit.exception() is not None:
                    raise
            running.ended = status
        self.committed(following, ended)
        return None

    async def _call_in_thread(self, running: Running, job_type: JobType, arguments: list[Any]) -> Result | None:
        """Call a sync handler in a thread; otherwise as `_call_async`. One that does not stop is left behind."""
        call = self._threads.run(partial(contextvars.copy_context().run, self._call_handler, running, job_type, arguments))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # The thread knows by its context that it should stop, and has a moment to.
            done, _ = await asyncio.wait({call}, timeout=self._options.cancel_timeout.total_seconds())
            if not done:
                self.leave_behind(call)
            elif call.exception() is None and job_type.session_argument is not None:
                return call.result()  # it had committed before it could be stopped
            raise

    def leave_behind(self, call: asyncio.Future[Any]) -> None:
        """Go on without a thread that does not stop: until it does, it takes a slot."""
        self.stuck_threads += 1
        call.add_done_callback(self._thread_came_back)

    def _thread_came_back(self, call: asyncio.Future[Any]) -> None:
        self.stuck_threads -= 1
        call.exception()  # whatever it is, the attempt has ended without it
        self.changed.set()

    def _call_handler(self, running: Running, job_type: JobType, arguments: list[Any]) -> Result | None:
        if job_type.session_argument is None:
            return self.encode(running, self._called(running, job_type, arguments), job_type)
        session: Session
        with self._sessions.open(job_type) as session:
            held = guard(session, running.job.id)
            with held:
                returned = self._called(running, job_type, arguments, **{job_type.session_argument: session})
            job, status = running.job, JobStatus.COMPLETED
            result = self.encode(running, returned, job_type)
            given: dict[str, Any] = {"model": self._model, "session_name": held.name}
            try:
                ended = complete_attempt(session, job, result, worker_id=self._worker_id, **given)
                # Before the commit expires it.
                following = queue_key_of(result.queue, result.fairness_key) if isinstance(result, JobMixin) else None
            except LostAttemptError:
                # A thread that was left behind may outlive the worker, and its loop: there is nothing to ask.
                if running.context.cancelled:
                    raise
                if job.id not in asyncio.run_coroutine_threadsafe(self.still_held([job]), self._loop).result():
                    raise
                ended = following = None
                status = ended_by_handler(session, [job.id], **given)[job.id]
                if status not in ENDED:
                    raise
            if running.context.cancelled:
                raise LostAttemptError(job.id, job.attempt)
            held.may_commit = True
            session.commit()
            running.ended = status
        self._loop.call_soon_threadsafe(self.committed, following, ended)
        return None

    def committed(self, following: str | None, ended: JobId | None) -> None:
        """Look after what a handler's own commit has set going: the next job's queue, a chain that others wait for."""
        if ended is not None:
            self._unblocker.put(ended)
        if following is not None:
            self._unblocker.notify_due(following)

    async def _awaited(self, running: Running, job_type: JobType, arguments: list[Any], /, **session: Any) -> Any:
        given = self._injected(running, job_type) | session
        with self._leave_if_forked, job_type.around_call(*session.values()):
            if not job_type.provided:
                return await job_type.func(*arguments, **given)
            async with open_dependencies_in_thread(running.context, job_type, self._threads) as provided:
                return await job_type.func(*arguments, **given, **provided)

    def _called(self, running: Running, job_type: JobType, arguments: list[Any], /, **session: Any) -> Any:
        around = job_type.around_call(*session.values())
        with self._leave_if_forked, around, open_dependencies(running.context, job_type) as provided:
            return job_type.func(*arguments, **self._injected(running, job_type), **provided, **session)

    def _injected(self, running: Running, job_type: JobType) -> dict[str, Any]:
        given: dict[str, Any] = {} if job_type.context_argument is None else {job_type.context_argument: running.context}
        if job_type.blockers_argument is not None:
            given[job_type.blockers_argument] = running.blockers
        return given

    def encode(self, running: Running, returned: Any, job_type: JobType) -> Result:
        """Return a return value in the form in which it is written. Raises: InvalidOutputError, InvalidJobError."""
        if running.context.suspended is not None:  # the handler has caught the signal of a sleep
            raise running.context.suspended
        if isinstance(returned, Continuation):
            return attach(self._model, running.job, returned, job_type)
        if returned is None and job_type.output.declared is Any:
            return "null"  # the usual case: nothing to check
        return json.dumps(job_type.encode_output(returned))

    def _open_steps(self, context: AttemptContext) -> AttemptSteps:
        return AttemptSteps(self._steps, context)

    def _request_extension(self, context: AttemptContext, timeout: timedelta) -> None:
        # Called from the handler's thread or task; the work is done on the loop.
        self._loop.call_soon_threadsafe(self._extend, context, timeout)

    def _extend(self, context: AttemptContext, timeout: timedelta) -> None:
        # Searched for: a reference from the context to its attempt would be a cycle that only the garbage collector frees.
        for running in self._running:
            if running.context is context:
                self._keep(self._extender.extend(running, timeout))
                return

    def _keep(self, coroutine: Any) -> asyncio.Task[Any]:
        # The loop has only weak references to tasks: keep one that is not awaited until it is done.
        task: asyncio.Task[Any] = self._loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_retrieve)
        return task


def _begun(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Return a task for a coroutine; from Python 3.12 on, run it eagerly up to its first wait.

    Handlers that never wait then cost the loop nothing. If the application set a task factory, it is used instead.
    """
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(coroutine, loop=loop, name=name, eager_start=True)
    return loop.create_task(coroutine, name=name)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SQLAlchemyError):
        _log.debug("a task in the background failed: %r", error)  # code that awaits it gets the error as well
