"""Runs jobs inside a test's own session and transaction: no worker, no commit.

Each attempt is a savepoint: what its handler wrote is kept with its completion, or rolled back with its failure. The
statements that record its end are the worker's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Select, func, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from sa_jobqueue.context import AttemptContext, BlockerOutcome, Blockers, ClaimedJob, enter_attempt
from sa_jobqueue.errors import CompletionRefusedError, HandlerCommitError, InvalidOptionError
from sa_jobqueue.events import EventBus, JobCancelled, JobCompleted, JobStarted, StepCompleted
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.operations.blockers import unblock_all
from sa_jobqueue.operations.completions import Finished, complete_attempts, finish_parameters
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import blockers, completions, visibility
from sa_jobqueue.statements._parts import table, table_oid
from sa_jobqueue.testing.clock import expire
from sa_jobqueue.types import ENDED, JobId, JobStatus
from sa_jobqueue.worker.finish.completer import event_of
from sa_jobqueue.worker.finish.outcomes import failed
from sa_jobqueue.worker.run.calls import Call, encode, unwrapped
from sa_jobqueue.worker.run.guard import Guard
from sa_jobqueue.worker.run.middleware import surround
from sa_jobqueue.worker.run.step_groups import StepGroups
from sa_jobqueue.worker.run.steps import Suspended, WorkerSteps

T = TypeVar("T")

INLINE: Final = "inline"
"""Value of `leased_by` and `completed_by` for jobs that run without a worker."""


class Inline:
    """Runs the due jobs of one `JobQueue` in one session."""

    steps_class: type[StepGroups] = StepGroups
    """Class of the steps of an attempt."""

    def __init__(self, jobs: JobQueue[Any], session: Session | AsyncSession, events: EventBus) -> None:
        self._jobs = jobs
        self._model: JobClass = jobs.model
        self._session = session
        self._events = events

    async def on(self, work: Callable[[Session], T]) -> T:
        """Call a function with the synchronous side of the session."""
        return await self._session.run_sync(work) if isinstance(self._session, AsyncSession) else work(self._session)

    def store(self) -> InlineSteps:
        """Return the store of the steps of an attempt."""
        return InlineSteps(self._jobs, self._session, self._events)

    async def run_next(self) -> bool:
        """Run the attempt that is due first; return whether there was one."""
        job_id = await self.on(self._find)
        if job_id is None:
            return False
        job = await self.on(lambda session: start(session, self._model, job_id))
        # In a task: the attempt is the current one of its own context, not of the test's.
        await asyncio.get_running_loop().create_task(self.run_attempt(job))
        await self.on(lambda session: expire(session, self._model))
        return True

    def _find(self, session: Session) -> JobId | None:
        session.flush()
        job = self._model.__table__.c
        statement: Select[Any] = (
            select(job.id)
            .where(
                job.status == JobStatus.PENDING,
                job.scheduled_at <= func.now(),
                or_(job.expires_at.is_(None), job.expires_at > func.now()),
                job.type_name.in_(self._jobs.registry.names),
            )
            .order_by(job.priority.desc(), job.scheduled_at, job.id)
            .limit(1)
        )
        return session.scalars(statement).first()

    async def run_attempt(self, job: ClaimedJob) -> AttemptContext:
        """Run an attempt that has been started, in a separate task; record its end, and return it."""
        job_type = self._jobs.registry.get(job.type_name)
        steps = self.store()
        context = AttemptContext(job, INLINE, lambda *_: None, steps=partial(self.steps_class, steps))
        enter_attempt(context)
        self._events.begin(context)
        self._events.emit(JobStarted(job.id, job.type_name, job.attempt))
        begun = time.monotonic()
        savepoint = steps.savepoint = _Savepoint(await self.on(lambda session: session.begin_nested()))
        savepoint.search_path = await self.on(lambda session: session.scalars(visibility.search_path(self._model)).one())
        try:
            with job_type.around_attempt():
                status = await self._attempt(context, job_type, savepoint)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise  # of the test run itself
        except BaseException as error:
            context.error = error
            await self.on(lambda session: savepoint.transaction.rollback())
            await self.on(steps.record_again)
            if isinstance(context.suspended, Suspended):  # its end is recorded with the step
                end = context.suspended.end
            else:
                end = failed(context, error, job_type, ran=timedelta(seconds=time.monotonic() - begun))
                await self.on(lambda session: finish(session, self._model, end))
            self._events.emit(event_of(end))
        else:
            await self.on(lambda session: savepoint.transaction.commit())
            kind = JobCompleted if status is JobStatus.COMPLETED else JobCancelled
            self._events.emit(kind(job.id, job.type_name, job.attempt, timedelta(seconds=time.monotonic() - begun)))
        return context

    async def _attempt(self, context: AttemptContext, job_type: JobType, savepoint: _Savepoint) -> JobStatus:
        results: list[Any] = []

        async def call() -> None:
            results.append(await self._call(context, job_type, savepoint))

        await surround(job_type.middleware, context, call)
        result = encode(self._model, context, job_type, *results)
        return await self.on(lambda session: complete(session, self._model, context.job, result, savepoint.search_path))

    async def _call(self, context: AttemptContext, job_type: JobType, savepoint: _Savepoint) -> Any:
        job = context.job
        call = Call(
            job_type, [context], [job_type.decode(job.input, job.input_version)] if job_type.signature.takes_input else []
        )
        handler_session = None if job_type.signature.session_argument is None else self._handler_session(job_type)
        if job_type.signature.blockers_argument is not None:
            call.blockers = await self.on(lambda session: self._blockers(session, job, job_type))
        if job_type.is_async:
            sync = self._session.sync_session if isinstance(self._session, AsyncSession) else self._session
            with savepoint.held(sync):
                return unwrapped(*await call.run_async(handler_session))

        def run(session: Session) -> list[Any]:
            with savepoint.held(session):
                return call.run(handler_session)

        return unwrapped(*await self.on(run))

    def _handler_session(self, job_type: JobType) -> Any:
        session_class: Any = job_type.signature.session_class
        session = self._session
        if isinstance(session, AsyncSession) and not issubclass(session_class, AsyncSession):
            session = session.sync_session
        if not isinstance(session, session_class):
            raise InvalidOptionError(
                "session",
                f"is a {type(session).__name__}, but the handler {job_type.place} takes a {session_class.__name__}: "
                "pass one of that class; `drain` takes an engine as well",
            )
        return session

    def _blockers(self, session: Session, job: ClaimedJob, job_type: JobType) -> Blockers[Any]:
        rows = session.execute(blockers.outcomes(self._model), {"job_id": job.id})
        return job_type.blockers_of([BlockerOutcome(*row) for row in rows])


class _Savepoint:
    """The savepoint of an attempt. A handler's rollback replaces it, because it may go on after that."""

    def __init__(self, transaction: SessionTransaction) -> None:
        self.transaction = transaction
        self.search_path = ""
        """The search path before the attempt: a handler's own would go on, in the transaction of the test."""

    @contextmanager
    def held(self, session: Session) -> Iterator[None]:
        """Keep a handler from ending the test's transaction: its commit is refused, its rollback is the savepoint's."""

        def commit() -> None:
            raise HandlerCommitError

        def roll_back() -> None:
            self.transaction.rollback()
            self.transaction = session.begin_nested()

        instance_attributes = vars(session)  # on the instance, so that every other session is as before
        instance_attributes |= {"commit": commit, "rollback": roll_back, "close": roll_back}
        try:
            yield
        finally:
            for name in ("commit", "rollback", "close"):
                del instance_attributes[name]


class InlineSteps(WorkerSteps):
    """Keeps the steps of an attempt in the test's session, even when the attempt's savepoint is rolled back."""

    savepoint: _Savepoint

    def __init__(self, jobs: JobQueue[Any], session: Session | AsyncSession, events: EventBus) -> None:
        self.model: JobClass = jobs.model
        self.registry, self._events, self._given = jobs.registry, events, session
        self._session = session.sync_session if isinstance(session, AsyncSession) else session
        self.own_locks = None
        self._calls: list[Callable[[Session], Any]] = []
        self._transaction: SessionTransaction | None = None

    async def call(
        self, work: Callable[[Session], T], *, is_async: bool, in_transaction: bool = False, watching: Any = None
    ) -> T:
        """Call a function with the session."""
        self._calls.append(work)
        if is_async and isinstance(self._given, AsyncSession):
            return await self._given.run_sync(work)
        return work(self._session)

    def emit(self, event: StepCompleted) -> None:
        """Report a recorded step."""
        self._events.emit(event)

    def is_outage(self, error: DBAPIError) -> bool:
        """Return False: the test's transaction is over."""
        return False

    def record_again(self, session: Session) -> None:
        """Record the writes that the rollback of the attempt has undone."""
        for work in self._calls:
            work(session)

    def session(self, context: AttemptContext, *, is_async: bool) -> tuple[Any, Guard]:
        """Return the test's session."""
        if is_async and not isinstance(self._given, AsyncSession):
            raise InvalidOptionError(
                "session", "is a Session, but the handler opens an asynchronous transaction: drain with an AsyncSession"
            )
        return self._given if is_async else self._session, Guard([context])

    def begin(self, session: Session) -> None:
        """Begin a savepoint."""
        self._transaction = session.begin_nested()

    def commit(self, session: Session) -> None:
        """Keep these and the earlier writes of the attempt, even if the attempt fails."""
        if self._transaction is not None:
            self._transaction.commit()
        self._transaction = None
        self.savepoint.transaction.commit()
        self.savepoint.transaction = session.begin_nested()
        self._calls.clear()

    def close(self, session: Session) -> None:
        """Roll back writes that were not kept."""
        if self._transaction is not None and self._transaction.is_active:
            self._transaction.rollback()
        self._transaction = None


def start(session: Session, model: JobClass, job_id: JobId) -> ClaimedJob:
    """Begin an attempt of a pending job. Changes: pending -> running."""
    job, attempts = table(model), table(model.Attempt)
    ended = select(func.max(attempts.c.ended_at)).where(attempts.c.job_id == job.c.id).scalar_subquery()
    columns = [job.c[name] for name in ClaimedJob._fields if name not in {"last_attempt_ended_at", "table_oid"}]
    values = {"status": JobStatus.RUNNING, "attempt": job.c.attempt + 1, "started_at": func.now(), "leased_by": INLINE}
    statement = update(job).where(job.c.id == job_id, job.c.status == JobStatus.PENDING).values(values)
    row = session.execute(statement.returning(*columns, ended, table_oid(job))).one()
    return ClaimedJob(*row)


def complete(session: Session, model: JobClass, job: ClaimedJob, result: str | JobMixin[Any], search_path: str) -> JobStatus:
    """End an attempt with success and continue what waited for it; return the job's status.

    `search_path`: set after it, because the handler may have changed it.
    Raises: as in a worker.
    """
    completion = complete_attempts(session, [(job, result)], worker_id=INLINE, model=model)
    session.execute(visibility.set_search_path(model), {"search_path": search_path})
    for unwritten in completion.unwritten:
        if isinstance(unwritten.end, CompletionRefusedError):
            raise unwritten.end
        return unwritten.end  # the handler has ended its own job
    if completion.ended_chains:
        unblock_all(session.connection(), model, completion.ended_chains)
    return JobStatus.COMPLETED


def finish(session: Session, model: JobClass, end: Finished) -> None:
    """End an attempt without success, and continue what waited for it."""
    parameters = finish_parameters([end], worker_id=INLINE, model=model)
    row = session.execute(completions.finish(model), parameters).one()
    if row.has_waiters and end.status in ENDED:
        unblock_all(session.connection(), model, [row.chain_id])
