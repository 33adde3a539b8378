"""Runs handlers: decodes the payload, calls the function, and passes its result on to be written.

A handler that takes a session completes in that session's own commit; every other end goes to the completer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import tracing
from sa_jobqueue.context import AttemptContext, BlockerOutcome, ClaimedJob, attempt_in, enter_attempt
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.display.printable import printable
from sa_jobqueue.errors import AttemptTimeoutError, DeadlinePassedError
from sa_jobqueue.events import AttemptLost, JobCancelled, JobStarted, MiddlewareFailed
from sa_jobqueue.operations.completions import Finished
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import blockers, leases, traces
from sa_jobqueue.types import LOST, MOST_CONCURRENT, CancelReason, JobId, JobStatus
from sa_jobqueue.worker.escapes import contained, original
from sa_jobqueue.worker.finish.completer import Completer, completed
from sa_jobqueue.worker.finish.outcomes import Completed, RetryOf, failed, of_error, released, unrecorded
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.run.batches import Batches
from sa_jobqueue.worker.run.calls import Calls, Result, Running, unwrapped
from sa_jobqueue.worker.run.isolation import Children
from sa_jobqueue.worker.run.middleware import surround
from sa_jobqueue.worker.run.sessions import Sessions
from sa_jobqueue.worker.run.slots import Slots
from sa_jobqueue.worker.run.started import StartedAttempts
from sa_jobqueue.worker.run.step_groups import StepGroups
from sa_jobqueue.worker.run.steps import Suspended, WorkerSteps
from sa_jobqueue.worker.shared import Part, Shared

_log: Final = logging.getLogger("sa_jobqueue.worker")


class Executor(Part):
    """Holds the running attempts of a worker, at most `concurrency`."""

    def __init__(
        self,
        shared: Shared,
        sessions: Sessions,
        *,
        completer: Completer,
        unblocker: Unblocker,
        children: Children,
        steps_engine: AsyncEngine,
        retry_of: RetryOf,
        slots: tuple[Slots, int] | None,
    ) -> None:
        super().__init__(shared)
        self._registry = shared.jobs.registry
        self._completer, self._children, self._retry_of = completer, children, retry_of
        self._blockers, self._extend_lease = blockers.outcomes(self._model), leases.extend(self._model)
        self._linked = traces.linked(self._model)
        self.concurrency = self._options.concurrency
        """How many attempts it may run at a time."""
        self.changed = asyncio.Event()
        """Set whenever a slot becomes free."""
        self._calls = Calls(shared, sessions, unblocker, self.changed)
        self._batches = Batches(self._calls, free_for=self.free_for, stop=self.stop)
        self._running: set[Running] = set()
        self._started = StartedAttempts()
        self._by_queue: Counter[str] = Counter()
        self._by_type: Counter[str] = Counter()
        self._is_shutting_down = False
        self._slots, weight = slots or (Slots(MOST_CONCURRENT), 1)
        self._slots.join(self, weight)
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.current_task()
        self._open_steps = partial(StepGroups, WorkerSteps(shared, steps_engine, sessions))
        self._suspected: set[str] = set()
        self._verifying: asyncio.Task[Any] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self.given_back = 0
        """How many attempts were given back unfinished."""

    @property
    def stuck_threads(self) -> int:
        """How many threads are occupied by handlers of attempts that have ended."""
        return self._calls.stuck_threads

    @property
    def free(self) -> int:
        """How many more jobs may be started; a thread that does not stop keeps its slot."""
        free_slots = self.concurrency - len(self._running) - self.stuck_threads
        return min(free_slots, self._slots.free(self))

    def claiming(self) -> AbstractAsyncContextManager[None]:
        """Reserve slots that are shared with other workers, for the duration of a claim."""
        return self._slots.claiming(self)

    def free_in(self, queue: str) -> int:
        """How many more jobs of a limited queue may be started."""
        limit = self._options.limits.get(queue)
        return self.free if limit is None else min(self.free, limit - self._by_queue[queue])

    def free_for(self, type_name: str) -> int:
        """How many more jobs of a type with `concurrency` may be started."""
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
        """Return the reports of the running attempts, by job id. May be asked from any thread.

        A heartbeat writes it, which must not fail because of a text: characters that the database cannot store are escaped.
        """
        reports: dict[str, Any] = {}
        for running in self._running.copy():  # a copy: the loop may change it
            if (reported := running.context.reported) is None:
                continue
            done_units, total, message = reported
            reports[str(running.job.id)] = {
                "attempt": running.job.attempt,
                "done": done_units,
                "total": total,
                "message": None if message is None else printable(message),
            }
        return reports

    def resize(self, concurrency: int) -> None:
        """Run at most this many attempts from now on. Running ones are not stopped."""
        self.concurrency = concurrency
        self._calls.threads.resize(concurrency)
        self.changed.set()

    def start(self, job: ClaimedJob) -> None:
        """Run a claimed job in a new task.

        The handler begins in a later turn of the loop, with every Python and task factory. If an earlier attempt of the
        job still runs here, it is stopped first.
        """
        earlier = [running for running in self._running if running.job.id == job.id] if job.attempt > 1 else []
        for running in earlier:
            self.stop(running, CancelReason.LEASE_LOST)  # rescued by another worker, and due here again
        running = Running(job)
        running.context = AttemptContext(job, self._worker_id, self._request_extension, steps=self._open_steps)
        self._started.add(job)
        if self._is_shutting_down:  # a stop that did not wait for the claim's answer
            running.stopping = CancelReason.SHUTDOWN
        run = self._run(running, [attempt.task for attempt in earlier])
        running.task = self._loop.create_task(run, name=job.type_name)
        self._running.add(running)  # with its task: the thread that watches the loop reads both
        self._by_queue[job.queue] += 1
        self._by_type[job.type_name] += 1
        running.task.add_done_callback(self._release_unbegun)

    def suspect(self, job_ids: Collection[str] | None) -> None:
        """Check whether attempts are still this worker's, and stop those that are lost; None: all that are running.

        A notification is only a hint: anybody who may connect can send one.
        """
        running = {str(running.job.id) for running in self._running}
        self._suspected |= running if job_ids is None else running.intersection(job_ids)
        if self._suspected and (self._verifying is None or self._verifying.done()):
            self._verifying = self._keep(self._verify())

    async def _verify(self) -> None:
        """Ask about suspected attempts together until the database answers; stop those that are lost."""
        while self._suspected:
            # Of several attempts of a job all but the last are stopping: `lost` answers by job.
            going = [running for running in self._running if running.stopping is None]
            suspected = [running for running in going if str(running.job.id) in self._suspected]
            self._suspected.clear()
            try:
                lost = await self._ownership.lost([running.job for running in suspected])
            except (SQLAlchemyError, OSError):  # an outage, or a pool that is busy; attempts may well outlive it
                self._suspected |= {str(running.job.id) for running in suspected}
                await asyncio.sleep(1)
                continue
            for running in suspected:
                if running.job.id in lost:
                    self.stop(running, lost[running.job.id])

    def end_of_orphan(self, job: ClaimedJob) -> Finished:
        """Return how an attempt ends that this worker holds in the database, and does not run.

        If it never started here, it is released: the answer to its claim was lost. If it did, its end was not recorded: it
        has failed, and is counted.
        """
        if job not in self._started:
            return released(job)
        return unrecorded(job, self._registry.get(job.type_name), default=self._retry_of(job.queue, job.fairness_key))

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

    def _set_timer(self, running: Running, timeout: timedelta | None) -> None:
        """Stop an attempt after `timeout`, or at the deadline of its job if that is earlier."""
        if running.timer is not None:
            running.timer.cancel()
        job, seconds = running.job, None if timeout is None else timeout.total_seconds()
        running.timeout, running.overrun = timeout, None if timeout is None else AttemptTimeoutError(timeout)
        if job.deadline is not None:
            # By the clock of the database, which was at `started_at` when the job was claimed.
            seconds_left = (job.deadline - job.started_at).total_seconds() - (time.monotonic() - running.started)
            if seconds is None or seconds_left <= seconds:
                seconds, running.overrun = max(seconds_left, 0.0), DeadlinePassedError(job.deadline)
        if seconds is not None:
            running.timer = self._loop.call_later(seconds, self.stop, running, CancelReason.TIMED_OUT)

    async def idle(self) -> None:
        """Wait until no attempt is running."""
        while self._running:
            self.changed.clear()
            await self.changed.wait()

    async def close(self) -> None:
        """Stop the background tasks and release the threads; threads that do not stop are left behind."""
        await cancelled(*self._background)
        self._calls.threads.close()
        self._slots.leave(self)

    async def _run(self, running: Running, earlier: Sequence[asyncio.Task[None]]) -> None:
        """Run the attempt and pass its result on to be written.

        `earlier`: tasks of earlier attempts of the job, which have been cancelled. Those that do not return within
        `cancel_timeout` are left behind.
        """
        if self._loop.get_task_factory() is not None:
            await asyncio.sleep(0)  # the application's factory may begin tasks eagerly, within `start`
        job = running.job
        job_type: JobType | None = None
        try:
            try:
                running.begun = True
                running.task.remove_done_callback(self._release_unbegun)
                running.started = time.monotonic()
                if running.stopping is not None:
                    raise asyncio.CancelledError
                if earlier:
                    limit = self._options.cancel_timeout + timedelta(seconds=1)  # threads and children have the first part
                    await asyncio.wait(earlier, timeout=limit.total_seconds())
                    running.started = time.monotonic()
                enter_attempt(running.context)
                self._events.begin(running.context)
                job_type = self._registry.get(job.type_name)
                self._set_timer(running, job.timeout)
                if tracing.is_recording():
                    await self._link(job, job_type)
                with job_type.around_attempt():
                    result = await (self._surrounded if job_type.middleware else self._attempt)(running, job_type)
            # User code ends here, and so does everything that it can raise.
            except BaseException as error:
                self._end_by(running, error, job_type)
            else:
                if running.ended is not None:
                    self._report_ended(running)
                else:
                    self._completer.put(Completed(job, result, time.monotonic() - running.started))
        except asyncio.CancelledError:
            raise  # the worker itself is being cancelled, which must pass
        except BaseException as error:  # a bug of ours: it must neither lose the attempt nor end the loop
            _log.exception("the end of an attempt could not be decided job_id=%s", job.id)
            self._completer.put(of_error(job, error, None))
        finally:
            self._forget(running)

    def _release_unbegun(self, task: asyncio.Task[None]) -> None:
        """Release a job whose task was cancelled before its first step, as all tasks are when their loop ends."""
        running = next(running for running in self._running if running.task is task)
        self._completer.put(released(running.job))
        self.given_back += 1
        self._forget(running)

    def _forget(self, running: Running) -> None:
        """Free the slot of an attempt that has ended."""
        if running.timer is not None:
            running.timer.cancel()
        self._running.discard(running)
        self._by_queue[running.job.queue] -= 1
        self._by_type[running.job.type_name] -= 1
        self._slots.freed()  # others first, if they run fewer
        self.changed.set()

    async def _link(self, job: ClaimedJob, job_type: JobType) -> None:
        """Link the current span, for a second attempt or a handler that takes blockers; others cost no round trip.

        An outage costs the links, not the attempt.
        """
        if job.attempt == 1 and job_type.blockers is None:
            return
        with suppress(DBAPIError):
            async with self._engine.connect() as connection:
                for kind, traceparent in await connection.execute(self._linked, {"job_id": job.id}):
                    tracing.link(traceparent, kind)

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
            self._fail(running, running.overrun or error, job_type)
        elif reason in LOST:
            self._signals.ended(job)
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
        self._signals.ended(job)
        ran = self._ran(running)
        is_completed = running.ended is JobStatus.COMPLETED
        self._events.emit(completed(job, ran) if is_completed else JobCancelled(job.id, job.type_name, job.attempt, ran))

    def _ran(self, running: Running) -> timedelta:
        # Not the loop's clock: uvloop's counts milliseconds.
        return timedelta(seconds=time.monotonic() - running.started)

    def _fail(self, running: Running, error: BaseException, job_type: JobType | None) -> None:
        running.context.error = original(error)
        default = self._retry_of(running.job.queue, running.job.fairness_key)
        self._completer.put(failed(running.context, error, job_type, ran=self._ran(running), default=default))

    async def _attempt(self, running: Running, job_type: JobType) -> Result:
        """Decode the input and call the handler; return its result."""
        job = running.job
        try:
            # In a child the decoding, which is user code as well, is the child's.
            if job_type.signature.takes_input and not job_type.isolated:
                running.arguments = (job_type.decode(job.input, job.input_version),)
            if self._events.has_subscribers(JobStarted):
                self._events.emit(JobStarted(job.id, job.type_name, job.attempt))
            if job_type.blockers is not None:
                async with self._engine.connect() as connection:
                    rows = await connection.execute(self._blockers, {"job_id": job.id})
                running.blockers = job_type.blockers_of([BlockerOutcome(*row) for row in rows])
            if job_type.isolated:
                extend = partial(self._extend, running)
                return await self._children.call(running.context, job_type, running.blockers, extend)
            if job_type.batch is not None:
                return await self._batches.call(running, job_type)
            (outcome,) = await self._calls.call(job_type, [running])
            result: Result = unwrapped(outcome)
            return result
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # before it reaches a task of a middleware, whose loop it would end
            raise contained(error) from error

    async def _surrounded(self, running: Running, job_type: JobType) -> Result:
        """Do the same within the middleware of the job's type."""
        results: list[Result] = []

        async def attempt() -> None:
            results.append(await self._attempt(running, job_type))

        try:
            await surround(job_type.middleware, running.context, attempt)
        except BaseException as error:
            if not results or running.ended is None:
                raise
            # The handler's own commit has completed the job: it is too late to fail, or to be stopped.
            job = running.job
            self._events.emit(MiddlewareFailed(job.id, job.type_name, job.attempt, error))
        return results[0]

    def _request_extension(self, context: AttemptContext, timeout: timedelta) -> Future[None]:
        # Called from the handler's thread or task; the work is done on the loop.
        extension = Future[None]()
        self._loop.call_soon_threadsafe(self._extend_of, context, timeout, extension)
        return extension

    def _extend_of(self, context: AttemptContext, timeout: timedelta, extension: Future[None]) -> None:
        # Searched for: a reference from the context to its attempt would be a cycle that only the garbage collector frees.
        for running in self._running:
            if running.context is context:
                self._keep(self._extend(running, timeout)).add_done_callback(lambda _: extension.set_result(None))
                return
        extension.set_result(None)  # the attempt has ended

    async def _extend(self, running: Running, timeout: timedelta) -> None:
        """Let an attempt run for `timeout` from now: here immediately, its lease as soon as the database answers."""
        if running not in self._running or running.stopping is not None:
            return
        self._set_timer(running, timeout)
        parameters = {
            "job_id": running.job.id,
            "job_attempt": running.job.attempt,
            "worker_id": self._worker_id,
            "extension": timeout,
            "grace": self._options.heartbeat_timeout,
        }
        while running in self._running and running.timeout is timeout:
            try:
                async with self._engine.connect() as connection:
                    is_ours = (await connection.execute(self._extend_lease, parameters)).first() is not None
            except DBAPIError:
                await asyncio.sleep(1)  # an outage; the attempt may well outlive it
                continue
            if not is_ours:
                # Awaited, before something starts that must not start for a lost attempt.
                self._suspected.add(str(running.job.id))
                await self._verify()
            return

    def _keep(self, coroutine: Any) -> asyncio.Task[Any]:
        # The loop has only weak references to tasks: keep one that is not awaited until it is done.
        task: asyncio.Task[Any] = self._loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_retrieve)
        return task


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SQLAlchemyError):
        _log.debug("a task in the background failed: %r", error)  # code that awaits it gets the error as well
