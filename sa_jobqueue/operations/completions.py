"""Complete a job in the transaction of its writes, and continue its chain there; the ends of attempts without success.

Used by a worker for a handler with a session, and by the application for jobs that no worker runs: an approval, a webhook, a
result from another system.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Row, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import payloads
from sa_jobqueue.context import ClaimedJob, Continuation
from sa_jobqueue.errors import (
    CompletionRefusedError,
    HandlerCommitError,
    InvalidJobError,
    JobEndedError,
    NotFoundError,
    SchemaMissingError,
)
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.base import dead_letter_ids
from sa_jobqueue.models.checks import check_id
from sa_jobqueue.operations import references
from sa_jobqueue.operations.blockers import unblock_all
from sa_jobqueue.operations.transactions import queue_connection, require_transaction, translated
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, Handler, JobT
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import chains, completions, jobs, notifications, visibility
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import ENDED, AttemptOutcome, DeadReason, JobId, JobStatus

_End: TypeAlias = "tuple[ClaimedJob, str | JobMixin[Any]]"
"""An attempt, and its output as JSON text or the next job of its chain."""
_MODEL_OF_THE_HANDLER: Any = DEFAULT_MODEL
"""Not of the type of `Job`, which Pyright would join with the class that `handler` has."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The attempt ended without success. A rescheduled job is due after `delay`, or not before `at` if set."""

    job: ClaimedJob
    status: JobStatus
    outcome: AttemptOutcome
    delay: timedelta = timedelta(0)
    at: datetime | None = None
    error: dict[str, Any] | None = None
    fingerprint: str | None = None
    reason: DeadReason | None = None
    uncounted: bool = False
    ran: timedelta | None = None
    """How long the attempt ran; None if it never started."""
    by_default: bool = False
    """Whether the delay is the library's default: neither the handler nor its error set one."""


def finish_parameters(ends: Sequence[Finished], *, worker_id: str, model: JobClass) -> dict[str, Any]:
    """Return the parameters of `statements.completions.finish`, for attempts of one worker."""
    return {
        "ids": [end.job.id for end in ends],
        "attempts": [end.job.attempt for end in ends],
        "statuses": [end.status.value for end in ends],
        "delays": [end.delay.total_seconds() for end in ends],
        "ats": [end.at for end in ends],
        "outcomes": [end.outcome.value for end in ends],
        "errors": [None if end.error is None else json.dumps(end.error) for end in ends],
        "fingerprints": [end.fingerprint for end in ends],
        "uncounted": [int(end.uncounted) for end in ends],
        "reasons": [end.reason and end.reason.value for end in ends],
        "dead_letter_ids": dead_letter_ids(model.__jobqueue__, len(ends)),
        "locks": with_roots(ends),
        "worker_id": worker_id,
    }


def with_roots(ends: Iterable[Any]) -> list[Any]:
    """Return the rows that the results of attempts lock: the jobs, and the roots of continuations."""
    jobs = [end.job for end in ends]
    return [*(job.id for job in jobs), *(job.chain_id for job in jobs if job.chain_id != job.id)]


def attach(model: JobClass, before: Any, continuation: Continuation[Any], job_type: JobType | None = None) -> JobMixin[Any]:
    """Make a continuation's job the next job of a chain, and return it.

    `before`: the job that it follows, as a `ClaimedJob` or a `Job`. `job_type`: the type of that job, if it is known.
    Raises: InvalidJobError if the job belongs to another queue, has a deduplication key (which only the first job of a chain
    has), or is already in use; UndeclaredContinuationError if `job_type` does not declare it.
    """
    job = continuation.job
    if not isinstance(job, model):
        raise InvalidJobError("continuation", f"makes a {type(job).__name__}, its chain is of {model.__name__}")
    if not inspect(job).transient or job.chain_index != 0:  # before others are read: they may be expired
        raise InvalidJobError("continuation", "was used already; make a new one each time")
    if job_type is not None:
        job_type.check_continuation(job.type_name, None if job._handler is None else job._handler.job_type)
    if job.deduplication_key is not None:
        raise InvalidJobError("deduplication_key", "cannot be set for a continuation: the chain keeps its first job's key")
    job.chain_id = before.chain_id
    job.chain_type_name = before.chain_type_name
    job.chain_index = before.chain_index + 1
    job.chain_trace_context = before.chain_trace_context
    job._inherit_deadline(before.deadline)
    references.complete(None, [job])
    for index, blocker in enumerate(job._blockers):
        if blocker.chain_id == before.chain_id:
            raise InvalidJobError(f"blockers[{index}]", "is the job's own chain, which cannot end before it")
    return job


@dataclass(slots=True)
class Completion:
    """The writes about attempts in their handler's transaction, before its commit."""

    ended_chains: list[JobId] = field(default_factory=list)
    """Chains that ended and have waiters."""
    unwritten: list[Unwritten] = field(default_factory=list)
    """Attempts whose completion wrote no row."""
    was_hidden: bool = False
    """Whether the session found the rows only after its search path was changed."""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """An attempt whose completion wrote no row: it was lost, its handler ended it, or its session does not see it."""

    job: ClaimedJob
    end: JobStatus | CompletionRefusedError
    """The status with which the handler has ended its own job in this transaction; or the error with which the attempt fails
    if the worker still holds it."""


def complete_attempts(
    session: Session,
    ends: Sequence[tuple[ClaimedJob, str | JobMixin[Any]]],
    *,
    worker_id: str,
    model: JobClass,
    session_name: str | None = None,
) -> Completion:
    """Complete attempts, one or those of a batch, in their handler's own transaction.

    A completion counts only if it wrote the row in the table that the worker claimed the job in. If the session does not see
    that table, it is tried again with the table's schema first on the search path, which is restored then.
    `ends`: the jobs, each with its output as JSON text, or with the next job of its chain, as returned by `attach`.
    `session_name`: name of the handler's transaction (`statements.session_names`); None if the handler has begun none.
    Changes: running -> completed; inserts the continuations and their blockers.
    Locks: the chains' roots, the jobs, and the chains that the continuations wait for, in the usual order, until the
    transaction ends.
    Obliges: roll back the transaction if it raises, if an unwritten attempt ends with an error, or if the worker no longer
    holds one.
    Raises: HandlerCommitError if the handler ended its transaction; CompletionRefusedError if the session may not write;
    InvalidJobError and NotFoundError for a continuation.
    """
    # Pending objects of the handler may lock other chains when they are flushed: before ours, not after.
    session.flush()
    writes = _Writes(session, worker_id, model, session_name)
    if not (missing := writes.complete(ends)):
        return writes.completion
    with claimed_table_visible(session, model, missing[0][0].table_oid, session_name) as view:
        if view.has_table:
            still_missing = writes.complete(missing)
            writes.completion.was_hidden, missing = len(still_missing) < len(missing), still_missing
        for job, row in view.rows([job for job, _ in missing]):
            is_ended = row is not None and row.is_own and row.status in ENDED
            writes.completion.unwritten.append(Unwritten(job, row.status if is_ended else view.refusal(job, row)))
    return writes.completion


class _Writes:
    """Completes attempts in one transaction; returns those whose row it did not write."""

    def __init__(self, session: Session, worker_id: str, model: JobClass, session_name: str | None) -> None:
        self._session, self._worker_id, self._model, self._session_name = session, worker_id, model, session_name
        self.completion = Completion()

    def complete(self, ends: Sequence[_End]) -> list[_End]:
        missing: list[_End] = []
        ids = {row for job, result in ends for row in (job.chain_id, job.id, *_waited(result))}
        if len(ids) > 1:  # usually one, which its completion locks
            parameters = {"ids": sorted(ids), "table_oid": ends[0][0].table_oid}
            with refusals(ends[0][0]):
                locked = {row.id for row in self._session.execute(chains.lock(self._model, in_session=True), parameters)}
            missing = [end for end in ends if not {end[0].id, end[0].chain_id} <= locked]
            ends = [end for end in ends if {end[0].id, end[0].chain_id} <= locked]
        one_by_one, together = list(ends), []
        if len(ends) > 1:
            one_by_one, together = [end for end in ends if not _is_alone(*end)], [end for end in ends if _is_alone(*end)]
        for first in range(0, len(together), BATCH):
            missing += self._complete_many(together[first : first + BATCH])
        return missing + [end for end in one_by_one if not self._complete_one(*end)]

    def _complete_many(self, ends: Sequence[_End]) -> list[_End]:
        parameters = {
            "ids": [job.id for job, _ in ends],
            "attempts": [job.attempt for job, _ in ends],
            "outputs": [result for _, result in ends],
            "worker_id": self._worker_id,
            "table_oid": ends[0][0].table_oid,
        }
        with refusals(ends[0][0]):
            rows = self._session.execute(completions.complete(self._model, in_session=True), parameters).all()
        for row in rows:
            check_session(row.session_name, self._session_name)
        completed = {row.id: row.has_waiters for row in rows if row.is_completed}
        self.completion.ended_chains += [job_id for job_id, has_waiters in completed.items() if has_waiters]
        return [end for end in ends if end[0].id not in completed]

    def _complete_one(self, job: ClaimedJob, result: str | JobMixin[Any]) -> bool:
        continues = isinstance(result, JobMixin)
        parameters = {
            "job_id": job.id,
            "job_attempt": job.attempt,
            "job_output": None if continues else result,
            "worker_id": self._worker_id,
            "table_oid": job.table_oid,
        }
        with refusals(job):
            row = self._session.execute(completions.complete_one(self._model, continues=continues), parameters).first()
        if row is None:
            return False
        check_session(row.session_name, self._session_name)
        if not row.is_completed:
            return False
        if continues:
            _insert(self._session, result)
        elif _end_chain(self._session, self._model, job, row.has_waiters, table_oid=job.table_oid):
            self.completion.ended_chains.append(job.chain_id)
        return True


@dataclass(frozen=True, slots=True)
class SessionView:
    """The queue as the session of a handler sees it, for attempts whose rows it did not write."""

    connection: Connection
    model: JobClass
    description: Row[Any]
    """As `statements.visibility.find_claimed_table` returns it."""

    @property
    def has_table(self) -> bool:
        """Whether its database has the table that the worker claimed the job in."""
        return self.description.claimed is not None

    def rows(self, jobs: Sequence[ClaimedJob]) -> list[tuple[ClaimedJob, Any]]:
        """Return each job with its row, None where the session sees none."""
        if not jobs or not self.has_table:
            return [(job, None) for job in jobs]
        parameters = {"ids": [job.id for job in jobs], "table_oid": jobs[0].table_oid}
        with refusals(jobs[0]):
            row_by_id = {row.id: row for row in self.connection.execute(visibility.rows(self.model), parameters)}
        return [(job, row_by_id.get(job.id)) for job in jobs]

    def refusal(self, job: ClaimedJob, row: Any) -> CompletionRefusedError:
        """Return the error for a job of which the session sees this row."""
        description = self.description
        table, session = description.claimed, f"role {description.role!r}, search_path {description.search_path!r}"
        if table is None:
            visible = (
                "no table of its name"
                if description.visible is None
                else f"another table of its name, {description.visible}"
            )
            reason = (
                f"database {description.database!r}, which it is connected to, does not have the table that the "
                f"worker claimed the job in, and has {visible} ({session}): give the worker a session factory of its own "
                "database"
            )
        elif row is None:
            reason = (
                f"it does not see the row in {table} ({session}). A handler must not delete its own job: raise Cancel to "
                "end it without a result, or pass retention=Retention(completed=timedelta(0)) to have completed jobs deleted"
            )
            if description.has_row_security:
                reason += (
                    ". If it did not: row-level security applies to the session there, so undo what the handler has set, "
                    "such as a role or a tenant, before it returns, or give the role a policy for the rows that it completes"
                )
        elif (row.attempt, row.status) != (job.attempt, JobStatus.RUNNING):
            reason = (
                f"in its transaction the row in {table} has the status {str(row.status)!r} and attempt {row.attempt}: end "
                "the job by cancel_jobs, complete_job or an exception"
            )
        else:
            reason = (
                f"its update of the row in {table} changed nothing ({session}): a trigger on that table suppresses or "
                "reverts it, or the handler has changed the lease"
            )
        return CompletionRefusedError(job.id, f"the session of its handler cannot update it: {reason}")


@contextmanager
def claimed_table_visible(
    session: Session, model: JobClass, table_oid: int, session_name: str | None
) -> Iterator[SessionView]:
    """Within, have the session find the queue's tables where the worker does; then restore its search path.

    Raises: HandlerCommitError if the handler ended its transaction.
    """
    connection = queue_connection(session, model)
    description = connection.execute(visibility.find_claimed_table(model), {"table_oid": table_oid}).one()
    check_session(description.session_name, session_name)
    yield SessionView(connection, model, description)
    # Deferred triggers and listeners of the commit are the application's: they find its tables as its handler did.
    connection.execute(visibility.set_search_path(model), {"search_path": description.search_path})


_REFUSALS: Final = ("0A", "25", "42", "44", "55000", "57014")
"""SQLSTATE, or its beginning, of errors of a statement that the session does not let through."""


@contextmanager
def refusals(job: ClaimedJob) -> Iterator[None]:
    """Raise CompletionRefusedError where the session of a handler does not let a statement of the worker through."""
    try:
        yield
    except DBAPIError as error:
        diagnosis = diagnose(error)
        if diagnosis.sqlstate is None or not diagnosis.sqlstate.startswith(_REFUSALS):
            raise
        raise _refusal_by_server(job, diagnosis.message) from error
    except SchemaMissingError as error:
        raise _refusal_by_server(job, str(error).partition(":")[0]) from error


def _refusal_by_server(job: ClaimedJob, message: str) -> CompletionRefusedError:
    return CompletionRefusedError(
        job.id,
        f"the session of its handler cannot update it: {message}. The worker's statement runs in the handler's transaction, "
        "with the role, search path and settings that the handler has set: undo these before it returns",
    )


def check_session(session_name: str, expected: str | None) -> None:
    """Check that a statement runs in the transaction of the handler's own statements. Raises: HandlerCommitError."""
    if expected is not None and session_name != expected:
        raise HandlerCommitError(
            "the handler's writes and its completion are one commit, but the transaction of its first statement has ended, "
            "by a COMMIT or ROLLBACK that SQLAlchemy did not see (or the handler changed application_name, which marks it): "
            "send none, and open another session for what must be kept"
        )


def _waited(result: str | JobMixin[Any]) -> list[JobId]:
    return [blocker.chain_id for blocker in result._blockers] if isinstance(result, JobMixin) else []


def _is_alone(job: ClaimedJob, result: str | JobMixin[Any]) -> bool:
    """Return whether a job is its whole chain."""
    return job.chain_index == 0 and isinstance(result, str)


def _insert(session: Session, following: Any) -> None:
    with translated():
        session.add(following)
        session.flush()


def _end_chain(
    session: Session | Connection, model: JobClass, job: Any, has_waiters: bool, *, table_oid: int | None = None
) -> bool:
    """End the chain of a job that has completed, a root's with the job; return whether it has waiters.

    `table_oid`: of the table that a worker claimed the job in; None without a worker.
    """
    if job.chain_index > 0:
        in_session = {} if table_oid is None else {"table_oid": table_oid}
        end = chains.end(model, in_session=bool(in_session))
        has_waiters = session.execute(end, {"root": job.chain_id, **in_session}).scalar_one()
    return has_waiters


def complete_job(
    session: Session,
    job_id: JobId,
    result: Any = None,
    *,
    handler: Handler[Any, Any, JobT] | None = None,
    model: type[JobT] = _MODEL_OF_THE_HANDLER,
) -> JobT:
    """Complete a job without a worker, and return it.

    Use it for jobs that wait for a person or another system. The job can be blocked, pending or running. `result`: anything
    that its handler could return: an output, or a continuation (`other.continuation(payload)`).
    `handler`: the job's handler. `result` is then checked and encoded by its annotation, as in a worker, and the model
    is the handler's. Without it, `result` is JSON, a dataclass or a Pydantic model. If a worker is running the job,
    later writes of the handler's session are rolled back.
    Changes: -> completed, with `completed_by` null; inserts an attempt if it was running, and the continuation;
    unblocks jobs that wait for the chain.
    Locks: the chain's root, the job, and the chains that the continuation waits for, until the transaction ends.
    Raises: NotFoundError, JobEndedError, InvalidPayloadError; InvalidOptionError if the handler is not the job's;
    UndeclaredContinuationError, InvalidJobError, NotFoundError and ConflictError for the continuation. Nothing is
    written then.
    """
    if handler is not None:
        model = handler.model
    output = None if handler is not None or isinstance(result, Continuation) else payloads.encode_any("result", result)
    check_id(model, "job_id", job_id)
    require_transaction(session.connection(bind_arguments={"mapper": model}), "completing a job")
    session.flush()
    with translated():
        places = session.execute(jobs.named(model, ("chain_id",)), {"ids": [job_id]}).first()
    if places is None:
        raise NotFoundError("job", [job_id])
    waited = [blocker.chain_id for blocker in result.job._blockers] if isinstance(result, Continuation) else []
    session.execute(chains.lock(model), {"ids": [job_id, places.chain_id, *waited]})
    job: JobT | None = session.get(model, job_id, populate_existing=True)
    if job is None:
        raise NotFoundError("job", [job_id])
    if job.status in ENDED:
        raise JobEndedError(job_id, job.status)
    if handler is not None:
        output = handler.encode_result(job_id, job.type_name, result)
    job_type = None if handler is None else handler.job_type
    following = attach(model, job, result, job_type) if isinstance(result, Continuation) else None
    # A continuation may yet prove impossible to write; the caller's transaction must be as before then, and usable.
    with nullcontext() if following is None else session.begin_nested():
        connection = queue_connection(session, model)
        if job.status is JobStatus.RUNNING:
            connection.execute(jobs.interrupt(model, AttemptOutcome.SUPERSEDED), {"ids": [job_id]})
            connection.execute(notifications.notify_each(model, "lost"), {"ids": [str(job_id)]})
        row = connection.execute(
            chains.complete_unclaimed(model, continues=following is not None),
            {"job_id": job_id, "job_output": None if following is not None else json.dumps(output)},
        ).one()
        if following is not None:
            _insert(session, following)
    if following is None and _end_chain(connection, model, job, row.has_waiters):
        unblock_all(connection, model, [job.chain_id])
    session.refresh(job)
    return job


def lock_chain(session: Session, chain_id: JobId, *, model: type[JobT] = DEFAULT_MODEL) -> JobT:  # type: ignore[assignment]
    """Lock a chain and return its last job: no other transaction can end or continue the chain until this one ends.

    Locks: the chain's root and the job, until the transaction ends.
    Raises: NotFoundError.
    """
    check_id(model, "chain_id", chain_id)
    session.flush()
    with translated():
        root = session.execute(chains.lock(model), {"ids": [chain_id]}).first()
    if root is None or root.chain_id != chain_id:
        raise NotFoundError("chain", [chain_id], field="chain_id")
    job: JobT = session.scalars(chains.last_job(model), {"chain_id": chain_id}).one()
    return job
