"""`drain`: run the due jobs in a test, and fail where a handler failed."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, overload

from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import AttemptSignal, InvalidOptionError, JobQueueError
from sa_jobqueue.events import EventBus, JobCancelled, JobCompleted, JobDied, JobRescheduled
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.testing._dispatch import opened, run
from sa_jobqueue.testing.clock import move
from sa_jobqueue.testing.inline import Inline
from sa_jobqueue.types import AttemptOutcome, JobId, JobStatus
from sa_jobqueue.worker import Worker, WorkerOptions

_FAILURES: Final = {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}


@dataclass(slots=True)
class Drained:
    """Number of attempts of a `drain` by outcome."""

    completed: int = 0
    """Completed."""
    retried: int = 0
    """Failed, or raised `Retry`; the job is due again later."""
    snoozed: int = 0
    """Raised `Snooze`."""
    died: int = 0
    """Died: their jobs are dead letters."""
    cancelled: int = 0
    """Ended with `Cancel`."""
    errors: list[BaseException] = field(default_factory=list)
    """Exceptions that handlers raised, without signals such as `Snooze`, oldest first."""


class EndlessDrainError(JobQueueError):
    """`drain` ran `limit` attempts and more are due."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit} attempts have run and more are due: does a handler snooze, fail or enqueue itself without end? "
            "Pass until= to stop at a time, or a larger limit="
        )

    def __reduce__(self) -> Any:
        return type(self), (self.limit,)


@overload
def drain(
    jobs: JobQueue[Any],
    on: Engine | Session | scoped_session[Any],
    *,
    raise_errors: bool = True,
    scheduled: bool = False,
    until: timedelta | datetime | None = None,
    limit: int = 1000,
    options: WorkerOptions = ...,
) -> Drained: ...
@overload
def drain(
    jobs: JobQueue[Any],
    on: AsyncEngine | AsyncSession | async_scoped_session[Any],
    *,
    raise_errors: bool = True,
    scheduled: bool = False,
    until: timedelta | datetime | None = None,
    limit: int = 1000,
    options: WorkerOptions = ...,
) -> Coroutine[Any, Any, Drained]: ...
def drain(
    jobs: JobQueue[Any],
    on: Any,
    *,
    raise_errors: bool = True,
    scheduled: bool = False,
    until: timedelta | datetime | None = None,
    limit: int = 1000,
    options: WorkerOptions = WorkerOptions(poll_interval=timedelta(milliseconds=100)),
) -> Any:
    """Run the jobs that are due, and those that they lead to, until none is left; return how they ended.

    `on`: an engine runs a `Worker`, for committed jobs. A session runs the jobs in its own transaction, each attempt in
    a savepoint, and handlers receive it; pauses, limits, ordering keys, timeouts and processes need an engine. With an
    `AsyncEngine` or `AsyncSession`, await it.
    `raise_errors`: raise the first error of a handler once its attempt is recorded; not signals such as `Snooze`.
    `scheduled`: also run jobs that are due later, and retries, in the order of their times, each after an `advance`.
    `until`: only those due by then, a time or a duration from now; implies `scheduled`.
    `limit`: maximum number of attempts.
    `options`: of the worker.
    Raises: the exceptions of handlers; EndlessDrainError; InvalidOptionError; with an engine, as `Worker.run`.
    """
    if not isinstance(jobs, JobQueue):
        raise InvalidOptionError("jobs", f"must be a JobQueue, got a {type(jobs).__name__}")
    if isinstance(until, datetime) and until.utcoffset() is None:
        raise InvalidOptionError("until", f"must be an aware datetime or a timedelta, got {until!r}")
    target = on if isinstance(on, Engine | AsyncEngine) else opened(on)
    drain_ = _Drain(jobs, target, raise_errors, limit, options)
    work = drain_.run(is_scheduled=scheduled or until is not None, until=until)
    return work if isinstance(target, AsyncEngine | AsyncSession) else run(work)


@dataclass(slots=True)
class _Drain:
    """One call of `drain`."""

    jobs: JobQueue[Any]
    on: Any
    raise_errors: bool
    limit: int
    options: WorkerOptions
    attempts: dict[tuple[JobId, int], AttemptContext] = field(default_factory=dict)
    begun: int = 0
    worker: Worker | None = None
    drained: Drained = field(default_factory=Drained)
    events: EventBus = field(default_factory=EventBus)

    def __post_init__(self) -> None:
        self.events.on_attempt_start(self._count)
        self.events.subscribe(self._take)

    async def run(self, *, is_scheduled: bool, until: timedelta | datetime | None) -> Drained:
        time_left: timedelta | None = await self._at(_left, until) if isinstance(until, datetime) else until
        while True:
            if isinstance(self.on, Engine | AsyncEngine):
                await self._work()
            else:
                await self._work_inline()
            if not is_scheduled:
                return self.drained
            wait: timedelta | None = await self._at(_next_due, self.jobs)
            if wait is None or (time_left is not None and wait > time_left):
                return self.drained
            await self._at(move, wait, self.jobs.model)
            time_left = None if time_left is None else time_left - wait

    async def _work(self) -> None:
        self.worker = Worker(self.jobs, self.on, options=self.options, events=self.events)
        await self.worker.run_until_idle()
        self._check()

    async def _work_inline(self) -> None:
        inline = Inline(self.jobs, self.on, self.events)
        while await inline.run_next():
            self._check()

    def _check(self) -> None:
        if self.raise_errors and self.drained.errors:
            raise self.drained.errors[0]
        if self.begun > self.limit:
            raise EndlessDrainError(self.limit)

    def _count(self, attempt: AttemptContext) -> None:
        self.attempts[attempt.job.id, attempt.attempt] = attempt
        self.begun += 1
        if self.begun > self.limit and self.worker is not None:
            self.worker.stop(now=True)

    def _take(self, event: object) -> None:
        match event:
            case JobCompleted():
                self.drained.completed += 1
            case JobCancelled():
                self.drained.cancelled += 1
            case JobRescheduled(outcome=AttemptOutcome.SNOOZED):
                self.drained.snoozed += 1
            case JobRescheduled(outcome=outcome) if outcome in _FAILURES:
                self.drained.retried += 1
                self._note(event)
            case JobDied():
                self.drained.died += 1
                self._note(event)

    def _note(self, event: JobDied | JobRescheduled) -> None:
        """Keep the error of an attempt that failed; a job that died of its blocker had none."""
        attempt = self.attempts.get((event.job_id, event.attempt))
        error = None if attempt is None else attempt.error
        if error is None or isinstance(error, AttemptSignal):
            return
        error.add_note(f"raised by attempt {event.attempt} of the job {event.job_id} of type {event.type_name!r}")
        self.drained.errors.append(error)
        if self.raise_errors and self.worker is not None:
            self.worker.stop()

    async def _at(self, work: Any, *arguments: Any) -> Any:
        """Call a function with a session: the caller's, or one of the engine's, committed."""
        match self.on:
            case AsyncSession():
                return await self.on.run_sync(work, *arguments)
            case Session():
                return work(self.on, *arguments)
            case AsyncEngine():
                async with AsyncSession(self.on) as async_session, async_session.begin():
                    return await async_session.run_sync(work, *arguments)
        with Session(self.on) as session, session.begin():
            return work(session, *arguments)


def _left(session: Session, until: datetime) -> timedelta:
    now: datetime = session.scalars(select(func.now())).one()
    return until - now


def _next_due(session: Session, jobs: JobQueue[Any]) -> timedelta | None:
    """Return the time until the next scheduled job is due; None without scheduled jobs."""
    job = jobs.model.__table__.c
    waits = [job.status == JobStatus.PENDING, job.scheduled_at > func.now(), job.type_name.in_(jobs.registry.names)]
    wait: timedelta | None = session.scalars(select(func.min(job.scheduled_at) - func.now()).where(*waits)).one()
    return wait
