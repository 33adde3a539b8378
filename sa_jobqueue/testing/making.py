"""Factories: jobs that are at some point of their life, one attempt without a database, and an empty queue."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue.context import AttemptContext, BlockerOutcome, Blockers, ClaimedJob, Continuation
from sa_jobqueue.errors import Cancel, Discard, InvalidOptionError
from sa_jobqueue.models import Job, JobClass, JobMixin
from sa_jobqueue.operations.completions import complete_job
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.testing._dispatch import on_session, opened
from sa_jobqueue.testing.clock import expire
from sa_jobqueue.testing.inline import INLINE, finish, start
from sa_jobqueue.types import JobStatus
from sa_jobqueue.worker.finish.outcomes import failed
from sa_jobqueue.worker.run.calls import Call, unwrapped

JobT = TypeVar("JobT", bound=JobMixin[Any])


def perform(
    handler: Handler[Any, Any, Any],
    payload: Any = None,
    *,
    session: Session | AsyncSession | None = None,
    attempt: int = 1,
    last_error: BaseException | None = None,
    blockers: Iterable[Any] = (),
    **options: Any,
) -> Any:
    """Call a handler as an attempt of a worker does, without a job in the database; for an async handler, await it.

    The payload passes through JSON and back, and the output is checked; dependencies are opened, middleware is not run.
    Exceptions of the handler are raised, including signals.
    `handler`: the handler. `payload`: as in `Handler.job`. `session`: for a handler that takes one. `attempt`,
    `last_error`: for its `AttemptContext`. `blockers`: the outputs of the chains that its job waited for. `options`: of the
    job, as in `Handler.job`.
    Raises: InvalidPayloadError, InvalidJobError, InvalidOutputError; InvalidOptionError without a session it needs.
    """
    kind = handler.job_type
    job = handler.job(payload, **options)
    now = datetime.now(UTC)
    error = None if last_error is None else {"type": type(last_error).__name__, "message": str(last_error), "traceback": ""}
    claimed_fields = {name: job.__dict__.get(name) for name in ClaimedJob._fields} | {
        "attempt": attempt,
        "max_attempts": max(job.max_attempts, attempt),
        "last_error": error,
        "last_attempt_ended_at": None if error is None else now,
        "created_at": now,
        "scheduled_at": now,
        "started_at": now,
    }
    context = AttemptContext(ClaimedJob(**claimed_fields), INLINE, lambda *_: None)
    if kind.signature.session_argument is not None and session is None:
        raise InvalidOptionError("session", f"is needed: {kind.place} takes one")
    handler_session = None if kind.signature.session_argument is None else opened(session)
    call = Call(kind, [context], [kind.decode(job.input, kind.version)] if kind.signature.takes_input else [])
    if kind.signature.blockers_argument is not None:
        outputs = list(blockers)
        outcomes = tuple(BlockerOutcome(job.id, "", JobStatus.COMPLETED, output, None) for output in outputs)
        call.blockers = Blockers(kind.decode_blockers(outputs), outcomes)
    if kind.is_async:
        return _perform_async(call, handler_session)
    with kind.around_attempt():
        return _checked(call, call.run(handler_session))


async def _perform_async(call: Call, session: Any) -> Any:
    with call.job_type.around_attempt():
        return _checked(call, await call.run_async(session))


def _checked(call: Call, outcomes: list[Any]) -> Any:
    returned = unwrapped(*outcomes)
    if not isinstance(returned, Continuation):
        call.job_type.encode_output(returned)
    return returned


@overload
def make_job(
    session: Session,
    handler: Handler[Any, Any, JobT],
    payload: Any = None,
    *,
    status: JobStatus | str = JobStatus.PENDING,
    output: Any = None,
    error: BaseException | None = None,
    **options: Any,
) -> JobT: ...
@overload
def make_job(
    session: AsyncSession,
    handler: Handler[Any, Any, JobT],
    payload: Any = None,
    *,
    status: JobStatus | str = JobStatus.PENDING,
    output: Any = None,
    error: BaseException | None = None,
    **options: Any,
) -> Coroutine[Any, Any, JobT]: ...
def make_job(
    session: Any,
    handler: Handler[Any, Any, Any],
    payload: Any = None,
    *,
    status: JobStatus | str = JobStatus.PENDING,
    output: Any = None,
    error: BaseException | None = None,
    **options: Any,
) -> Any:
    """Enqueue a job and bring it to a state by the steps of a worker; return it, flushed, not committed.

    With an `AsyncSession`, await it. `handler`: the handler of the job. `payload`: as in `Handler.job`. `status`: pending,
    blocked (with `blockers`), running, completed, dead or cancelled. `output`: of a completed one. `error`: of a dead one,
    which has a dead letter, or of a pending one that will be retried. `options`: as in `Handler.job`.
    Raises: as `Handler.job`; InvalidOptionError for a status without the option that it needs.
    """
    target_status, model = JobStatus(status), handler.model
    if target_status is JobStatus.BLOCKED and not options.get("blockers"):
        raise InvalidOptionError("status", "blocked needs blockers=[...]")

    def make(session: Session) -> Any:
        job = handler.job(payload, **options)
        session.add(job)
        session.flush()
        if target_status is JobStatus.COMPLETED:
            complete_job(session, job.id, output, handler=handler)
        elif target_status in {JobStatus.RUNNING, JobStatus.DEAD, JobStatus.CANCELLED} or error is not None:
            claimed = start(session, model, job.id)
            if target_status is not JobStatus.RUNNING:
                context = AttemptContext(claimed, INLINE, lambda *_: None)
                ended = Cancel("by make_job") if target_status is JobStatus.CANCELLED else (error or Discard("by make_job"))
                if target_status is JobStatus.DEAD:
                    context.job = claimed._replace(max_attempts=claimed.attempt)
                end = failed(context, ended, handler.job_type, ran=timedelta(0))
                finish(session, model, replace(end, job=claimed))
        expire(session, model)
        session.refresh(job)
        return job

    return on_session(session, make)


@overload
def clear(session: Session, *, model: JobClass = Job) -> None: ...
@overload
def clear(session: AsyncSession, *, model: JobClass = Job) -> Coroutine[Any, Any, None]: ...
def clear(session: Any, *, model: JobClass = Job) -> Any:
    """Delete all jobs, their history and their dead letters, in the session's transaction: for a suite's teardown.

    Returns None; with an `AsyncSession`, await it.
    """

    def work(plain_session: Session) -> None:
        for kind in (model.Blocker, model.Attempt, model.Step, model.Event, model.DeadLetter, model):
            plain_session.execute(delete(kind).execution_options(synchronize_session=False))
        plain_session.expire_all()

    return on_session(session, work)
