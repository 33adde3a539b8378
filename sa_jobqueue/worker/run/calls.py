"""Calls the functions of handlers, and completes attempts in the commit of their handler's own session.

A call is of one attempt, or of those of a batch; on the loop or in a thread; in a worker, in a child process or in a test.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from sa_jobqueue.context import AttemptContext, Blockers, ClaimedJob, Continuation
from sa_jobqueue.db.forks import LeaveIfForked
from sa_jobqueue.db.splitting import summary
from sa_jobqueue.display.printable import printable
from sa_jobqueue.errors import AttemptTimeoutError, CompletionRefusedError, DeadlinePassedError, LostAttemptError
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.operations.completions import attach, complete_attempts
from sa_jobqueue.operations.references import load_arguments
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.batches import BatchFailed, BatchItem, outcomes_of, outcomes_without
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import CancelReason, JobId, JobStatus
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.run.dependencies import open_dependencies, open_dependencies_in_thread
from sa_jobqueue.worker.run.guard import Guard, UnconnectedError, guard
from sa_jobqueue.worker.run.sessions import Sessions
from sa_jobqueue.worker.run.threads import Threads
from sa_jobqueue.worker.shared import Part, Shared

PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before a handler whose session got no connection is called again in the same attempt; after the last it fails."""
_log = logging.getLogger("sa_jobqueue.worker.attempts")

Result: TypeAlias = str | JobMixin[Any]
"""A handler's return value, as it is written: JSON text, or the next job of the chain."""


@dataclass(slots=True, eq=False)
class Running:
    """One attempt in this process."""

    job: ClaimedJob
    context: AttemptContext = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    begun: bool = False
    """Whether its task has started: a task cancelled before that would end silently."""
    started: float = 0.0
    """When it started, by the monotonic clock."""
    timer: asyncio.TimerHandle | None = None
    timeout: timedelta | None = None
    """Its timeout, in total or since the last extension; None: no timeout."""
    overrun: AttemptTimeoutError | DeadlinePassedError | None = None
    """The error with which its timer stops it."""
    arguments: tuple[Any, ...] = ()
    """The decoded payload; empty if the handler takes none."""
    blockers: Blockers[Any] | None = None
    stopping: CancelReason | None = None
    """Why it should stop; None while it runs."""
    ended: JobStatus | None = None
    """How its handler's own commit ended the job; None without one. A job that it deleted counts as cancelled."""


class Failed:
    """The failure of one attempt. One exception may be that of many: each raises it with the traceback it came with."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.traceback = error, error.__traceback__


def unwrapped(outcome: Any) -> Any:
    """Return the result of an attempt, or raise the exception that made it fail."""
    if isinstance(outcome, Failed):
        raise outcome.error.with_traceback(outcome.traceback)
    return outcome


@dataclass(slots=True, eq=False)
class Call:
    """One call of a handler's function. It returns an outcome for each attempt; in a batch that may be a failure."""

    job_type: JobType
    contexts: Sequence[AttemptContext]
    """The attempts; one, unless it is a batch."""
    payloads: Sequence[Any]
    """The payload of each, decoded; empty if the handler takes none."""
    blockers: Blockers[Any] | None = None
    _missing: dict[int, Failed] = field(default_factory=dict)
    """The attempts of a batch whose mapped objects were not found, by their place."""

    def run(self, session: Any = None) -> list[Any]:
        """Call a sync handler, within its dependencies. Raises: its exceptions."""
        job_type = self.job_type
        with job_type.around_call(session), ExitStack() as stack:
            if job_type.signature.mapped and not self._load(session):
                return self._outcomes(None)
            provided = stack.enter_context(open_dependencies(self.contexts[0], job_type))
            try:
                return self._outcomes(job_type.func(*self._arguments(), **self._keyword_arguments(session), **provided))
            except BatchFailed as failed:
                return self._without(failed)

    async def run_async(self, session: Any = None, threads: Threads | None = None) -> list[Any]:
        """Call an async handler. Its dependencies are opened in one of `threads`, or in a separate thread."""
        job_type, own_threads = self.job_type, None
        if threads is None:
            threads = own_threads = Threads(1, "sa_jobqueue provided")
        try:
            with job_type.around_call(session):
                if job_type.signature.mapped and not await session.run_sync(self._load):
                    return self._outcomes(None)
                async with open_dependencies_in_thread(self.contexts[0], job_type, threads) as provided:
                    try:
                        return self._outcomes(
                            await job_type.func(*self._arguments(), **self._keyword_arguments(session), **provided)
                        )
                    except BatchFailed as failed:
                        return self._without(failed)
        finally:
            if own_threads is not None:
                own_threads.close()

    def _load(self, session: Session) -> bool:
        """Load the mapped objects of the payloads; return whether an attempt remains. Raises: what ends the only one."""
        self.payloads = load_arguments(session, self.job_type.signature.mapped, self.payloads)
        self._missing = {place: Failed(error) for place, error in enumerate(self.payloads) if isinstance(error, Exception)}
        if self._missing and self.job_type.batch is None:
            raise self.payloads[0]
        return len(self._missing) < len(self.contexts)

    def _arguments(self) -> Sequence[Any]:
        batch = self.job_type.batch
        if batch is None:
            return self.payloads
        payloads = self._remaining(self.payloads)
        return [list(map(BatchItem, payloads, self._remaining(self.contexts))) if batch.takes_items else payloads]

    def _remaining(self, each: Sequence[Any]) -> list[Any]:
        return [of_attempt for place, of_attempt in enumerate(each) if place not in self._missing]

    def _keyword_arguments(self, session: Any) -> dict[str, Any]:
        signature, arguments = self.job_type.signature, {}
        if signature.session_argument is not None:
            arguments[signature.session_argument] = session
        if signature.context_argument is not None:
            arguments[signature.context_argument] = self.contexts[0]
        if signature.blockers_argument is not None:
            arguments[signature.blockers_argument] = self.blockers
        return arguments

    def _outcomes(self, returned: Any) -> list[Any]:
        if self.job_type.batch is None:
            return [returned]
        return self._with_missing(outcomes_of(returned, len(self.contexts) - len(self._missing)))

    def _with_missing(self, outcomes: Sequence[Any]) -> list[Any]:
        remaining = iter(_each(outcomes))
        return [self._missing.get(place) or next(remaining) for place in range(len(self.contexts))]

    def _without(self, failed: BatchFailed) -> list[Any]:
        if self.job_type.batch is None:
            raise failed
        return self._with_missing(outcomes_without(failed, len(self.contexts) - len(self._missing)))


def _each(outcomes: Sequence[Any]) -> list[Any]:
    return [Failed(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]


def encode(model: JobClass, context: AttemptContext, job_type: JobType, returned: Any) -> Result:
    """Return a handler's return value in the form in which it is written. Raises: InvalidOutputError, InvalidJobError."""
    if context.suspended is not None:  # the handler has caught the signal of a sleep
        raise context.suspended
    if isinstance(returned, Continuation):
        return attach(model, context.job, returned, job_type)
    if returned is None and job_type.output.declared is Any:
        return "null"  # the usual case: nothing to check
    return json.dumps(job_type.encode_output(returned))


class LostAttemptsError(LostAttemptError):
    """Attempts of a call with a session were lost, so nothing was kept. `jobs` are those of the lost attempts."""

    def __init__(self, jobs: Sequence[ClaimedJob]) -> None:
        super().__init__(jobs[0].id, jobs[0].attempt)
        self.jobs = jobs


@dataclass(slots=True)
class _CallCompletion:
    """The writes of a handler's transaction about its attempts, before its commit."""

    results: list[Result | Failed]
    statuses: dict[JobId, JobStatus]
    """How each job that did not fail has ended."""
    ended: list[JobId]
    """Chains that have ended and that others wait for."""
    due: set[QueueKey]
    """Queue keys of continuations."""


class Calls(Part):
    """Calls handlers for a worker: async ones on its loop, sync ones in threads."""

    def __init__(self, shared: Shared, sessions: Sessions, unblocker: Unblocker, changed: asyncio.Event) -> None:
        super().__init__(shared)
        self._sessions, self._unblocker, self._changed = sessions, unblocker, changed
        self._loop = asyncio.get_running_loop()
        self._leave_if_forked = LeaveIfForked()
        self.threads = Threads(self._options.concurrency, "sa_jobqueue")
        self.stuck_threads = 0
        """How many threads are occupied by handlers of attempts that have ended."""

    async def call(self, job_type: JobType, attempts: Sequence[Running]) -> list[Result | Failed]:
        """Call a handler; return each attempt's result. Attempts that the commit of its session has completed are `ended`.

        If its session gets no connection, the handler is called again after pauses: failed attempts would be used up within
        a short outage. A sync handler that does not stop in time when this is cancelled is left behind in its thread.
        Raises: an exception of the handler that fails all of them; LostAttemptsError.
        """
        payloads = [payload for running in attempts for payload in running.arguments]
        pauses = iter(PAUSES)
        while True:
            call = Call(job_type, [running.context for running in attempts], payloads, attempts[0].blockers)
            try:
                return await (self._on_loop if job_type.is_async else self._in_thread)(call, attempts)
            except UnconnectedError as error:
                cause = error.cause
                if (pause := next(pauses, None)) is None:
                    raise cause from None
            job = attempts[0].job
            line = "job %s (%s) attempt %d: its session got no connection, calling the handler again in %.0f s: %s"
            _log.warning(line, job.id, printable(job.type_name), job.attempt, pause, printable(summary(cause)))
            await asyncio.sleep(pause)

    async def _on_loop(self, call: Call, attempts: Sequence[Running]) -> list[Result | Failed]:
        if call.job_type.signature.session_argument is None:
            with self._leave_if_forked:
                return self._encoded(call, await call.run_async(threads=self.threads))
        session: AsyncSession
        async with self._sessions.open(call.job_type) as session:
            session_guard = guard(session, call.contexts)
            with session_guard, self._leave_if_forked:
                outcomes = await call.run_async(session, self.threads)

            def leased_ids_of(jobs: Iterable[ClaimedJob]) -> set[JobId]:
                return await_only(self._ownership.owned_ids(jobs))

            call_completion = await session.run_sync(self._complete, call, outcomes, session_guard, leased_ids_of)
            if call_completion.statuses:
                session_guard.may_commit = True
                commit = self._loop.create_task(session.commit())
                try:
                    await asyncio.shield(commit)
                except asyncio.CancelledError:
                    # Stopped during the commit: wait for the server's answer, because it decides.
                    await asyncio.wait({commit})
                    if commit.exception() is not None:
                        raise
                _note(attempts, call_completion)
        self._follow(call_completion)
        return call_completion.results

    async def _in_thread(self, call: Call, attempts: Sequence[Running]) -> list[Result | Failed]:
        running = self.threads.run(partial(contextvars.copy_context().run, self._run, call, attempts))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # The thread knows by its context that it should stop, and has a moment to.
            for attempt in attempts:
                attempt.context.stop(attempt.stopping or CancelReason.SHUTDOWN)
            finished_tasks, _ = await asyncio.wait({running}, timeout=self._options.cancel_timeout.total_seconds())
            if not finished_tasks:
                self.stuck_threads += 1
                running.add_done_callback(self._came_back)
            elif running.exception() is None and call.job_type.signature.session_argument is not None:
                return running.result()  # it had committed before it could be stopped
            raise

    def _came_back(self, call: asyncio.Future[Any]) -> None:
        self.stuck_threads -= 1
        call.exception()  # retrieved, and ignored: the attempt has ended
        self._changed.set()

    def _run(self, call: Call, attempts: Sequence[Running]) -> list[Result | Failed]:
        if call.job_type.signature.session_argument is None:
            with self._leave_if_forked:
                return self._encoded(call, call.run())
        session: Session
        with self._sessions.open(call.job_type) as session:
            session_guard = guard(session, call.contexts)
            with session_guard, self._leave_if_forked:
                outcomes = call.run(session)

            def leased_ids_of(jobs: Iterable[ClaimedJob]) -> set[JobId]:
                _check_not_stopped(call)  # a thread that was left behind may outlive the worker, and its loop
                return asyncio.run_coroutine_threadsafe(self._ownership.owned_ids(jobs), self._loop).result()

            call_completion = self._complete(session, call, outcomes, session_guard, leased_ids_of)
            if call_completion.statuses:
                _check_not_stopped(call)
                session_guard.may_commit = True
                session.commit()
                _note(attempts, call_completion)
        self._loop.call_soon_threadsafe(self._follow, call_completion)
        return call_completion.results

    def _encoded(self, call: Call, outcomes: Sequence[Any]) -> list[Result | Failed]:
        """Return outcomes in the form in which they are written; one that cannot be encoded fails only its own job."""
        results: list[Result | Failed] = []
        for context, outcome in zip(call.contexts, outcomes, strict=True):
            try:
                encoded = outcome if isinstance(outcome, Failed) else encode(self._model, context, call.job_type, outcome)
                results.append(encoded)
            except BaseException as error:
                results.append(Failed(error))
        return results

    def _complete(
        self,
        session: Session,
        call: Call,
        outcomes: Sequence[Any],
        session_guard: Guard,
        leased_ids_of: Callable[[Iterable[ClaimedJob]], set[JobId]],
    ) -> _CallCompletion:
        """Complete the attempts that did not fail, in the handler's own transaction.

        `leased_ids_of`: returns the jobs that are this worker's, by the committed rows.
        Raises: LostAttemptsError; CompletionRefusedError.
        """
        results = self._encoded(call, outcomes)
        jobs = [context.job for context in call.contexts]
        ends = [(job, result) for job, result in zip(jobs, results, strict=True) if not isinstance(result, Failed)]
        call_completion = _CallCompletion(results, {job.id: JobStatus.COMPLETED for job, _ in ends}, [], set())
        if not ends:
            return call_completion
        try:
            with session_guard.explaining_extensions():
                completion = complete_attempts(
                    session, ends, worker_id=self._worker_id, model=self._model, session_name=session_guard.name
                )
            # Before the commit expires them.
            unwritten = {each.job.id: each.end for each in completion.unwritten}
            following = [end for job, end in ends if isinstance(end, JobMixin) and job.id not in unwritten]
            call_completion.due = {QueueKey(job.queue, job.fairness_key) for job in following}
            if unwritten:
                jobs = [each.job for each in completion.unwritten]
                leased = leased_ids_of(jobs)
                if lost := [job for job in jobs if job.id not in leased]:
                    raise LostAttemptsError(lost)
            # No other transaction has changed these jobs. So their handler has, in this one, and its change stands; or its
            # session does not see them, and nothing is kept.
            for job_id, end in unwritten.items():
                if isinstance(end, CompletionRefusedError):
                    raise end
                call_completion.statuses[job_id] = end
        except CompletionRefusedError:
            session_guard.discard_connections()
            raise
        if completion.was_hidden:
            session_guard.discard_connections()
        call_completion.ended = completion.ended_chains
        return call_completion

    def _follow(self, call_completion: _CallCompletion) -> None:
        """Handle the consequences of a commit: chains that others wait for, and the next jobs."""
        for chain_id in call_completion.ended:
            self._unblocker.put(chain_id)
        for queue_key in sorted(call_completion.due):
            self._unblocker.notify_due(queue_key.text)


def _check_not_stopped(call: Call) -> None:
    for context in call.contexts:
        if context.cancelled:
            raise LostAttemptError(context.job.id, context.attempt)


def _note(attempts: Sequence[Running], call_completion: _CallCompletion) -> None:
    for running in attempts:
        running.ended = call_completion.statuses.get(running.job.id)
