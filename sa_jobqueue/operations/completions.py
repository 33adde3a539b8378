"""Complete a job in the transaction of its writes, and continue its chain there; the ends of attempts without success.

Used by a worker for a handler with a session, and by the application for jobs that no worker runs: an approval, a webhook, a
result from another system.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, object_session

from sa_jobqueue import payloads
from sa_jobqueue.context import ClaimedJob, Continuation
from sa_jobqueue.errors import (
    HandlerCommitError,
    InvalidJobError,
    JobEndedError,
    NotFoundError,
)
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.base import dead_letter_ids
from sa_jobqueue.models.checks import check_id
from sa_jobqueue.operations.blockers import unblock_all
from sa_jobqueue.operations.transactions import queue_connection, require_transaction, translated
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, Handler, JobT
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import chains, completions, jobs, notifications
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.statements.session_names import read_name
from sa_jobqueue.types import ENDED, AttemptOutcome, DeadReason, JobId, JobStatus

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
    if job_type is not None:
        job_type.check_continuation(job.type_name, None if job._handler is None else job._handler.job_type)
    if job.deduplication_key is not None:
        raise InvalidJobError("deduplication_key", "cannot be set for a continuation: the chain keeps its first job's key")
    if job.chain_index != 0 or object_session(job) is not None:
        raise InvalidJobError("continuation", "was used already; make a new one each time")
    job.chain_id = before.chain_id
    job.chain_type_name = before.chain_type_name
    job.chain_index = before.chain_index + 1
    job.chain_trace_context = before.chain_trace_context
    for index, one in enumerate(job._blockers):
        if one.chain_id == before.chain_id:
            raise InvalidJobError(f"blockers[{index}]", "is the job's own chain, which cannot end before it")
    return job


def complete_attempts(
    session: Session,
    ends: Sequence[tuple[ClaimedJob, str | JobMixin[Any]]],
    *,
    worker_id: str,
    model: JobClass,
    session_name: str | None = None,
) -> tuple[list[JobId], list[ClaimedJob]]:
    """Complete attempts, one or those of a batch, in their handler's own transaction.

    Returns the chains that ended and have waiters, and the jobs that the worker no longer holds, or that the handler itself
    ended (`ended_by_handler`).
    `ends`: the jobs, each with its output as JSON text, or with the next job of its chain, as returned by `attach`.
    `session_name`: name of the handler's transaction (`statements.session_names`); None if the handler has begun none.
    Changes: running -> completed; inserts the continuations and their blockers.
    Locks: the chains' roots, the jobs, and the chains that the continuations wait for, in the usual order, until the
    transaction ends.
    Obliges: roll back the transaction if it raises, or if the worker no longer holds a job.
    Raises: HandlerCommitError if the handler ended its transaction; InvalidJobError and NotFoundError for a continuation.
    """
    # Pending objects of the handler may lock other chains when they are flushed: before ours, not after.
    session.flush()
    rows = {row for job, result in ends for row in (job.chain_id, job.id, *_waited(result))}
    if len(rows) > 1:  # usually one, which its completion locks
        session.execute(chains.lock(model), {"ids": sorted(rows)})
    ended: list[JobId] = []
    lost: list[ClaimedJob] = []
    one_by_one, together = list(ends), []
    if len(ends) > 1:
        one_by_one, together = [end for end in ends if not _is_alone(*end)], [end for end in ends if _is_alone(*end)]
    for first in range(0, len(together), BATCH):
        part = together[first : first + BATCH]
        given = {
            "ids": [job.id for job, _ in part],
            "attempts": [job.attempt for job, _ in part],
            "outputs": [result for _, result in part],
            "worker_id": worker_id,
        }
        written = {row.id: row for row in session.execute(completions.complete(model, in_session=True), given)}
        for each in written.values():
            check_session(each.session_name, session_name)
        ended += [job_id for job_id, row in written.items() if row.has_waiters]
        lost += [job for job, _ in part if job.id not in written]
    for job, result in one_by_one:
        continues = isinstance(result, JobMixin)
        row = session.execute(
            completions.complete_one(model, continues=continues),
            {
                "job_id": job.id,
                "job_attempt": job.attempt,
                "job_output": None if continues else result,
                "worker_id": worker_id,
            },
        ).first()
        if row is None:
            lost.append(job)
            continue
        check_session(row.session_name, session_name)
        if continues:
            _insert(session, result)
        elif _end_chain(session, model, job, row.has_waiters):
            ended.append(job.chain_id)
    return ended, lost


def ended_by_handler(
    session: Session, job_ids: Sequence[JobId], *, model: JobClass, session_name: str | None
) -> dict[JobId, JobStatus]:
    """Return the statuses of jobs that their handler changed in its own transaction; a deleted one counts as cancelled.

    Locks: the jobs and their chains' roots, until the transaction ends.
    Raises: HandlerCommitError if the handler ended its transaction.
    """
    check_session(session.scalars(read_name()).one(), session_name)
    found = {row.id: row.status for row in session.execute(jobs.lock(model, job_ids))}
    return {job_id: found.get(job_id, JobStatus.CANCELLED) for job_id in job_ids}


def check_session(found: str, expected: str | None) -> None:
    """Check that a statement runs in the transaction of the handler's own statements. Raises: HandlerCommitError."""
    if expected is not None and found != expected:
        raise HandlerCommitError(
            "the handler's writes and its completion are one commit, but the transaction of its first statement has ended, "
            "by a COMMIT or ROLLBACK that SQLAlchemy did not see (or the handler changed application_name, which marks it): "
            "send none, and open another session for what must be kept"
        )


def _waited(result: str | JobMixin[Any]) -> list[JobId]:
    return [one.chain_id for one in result._blockers] if isinstance(result, JobMixin) else []


def _is_alone(job: ClaimedJob, result: str | JobMixin[Any]) -> bool:
    """Return whether a job is its whole chain."""
    return job.chain_index == 0 and isinstance(result, str)


def _insert(session: Session, following: Any) -> None:
    with translated():
        session.add(following)
        session.flush()


def _end_chain(session: Session | Connection, model: JobClass, job: Any, has_waiters: bool) -> bool:
    """End the chain of a job that has completed, a root's with the job; return whether it has waiters."""
    if job.chain_index > 0:
        has_waiters = session.execute(chains.end(model), {"root": job.chain_id}).scalar_one()
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
    waited = [one.chain_id for one in result.job._blockers] if isinstance(result, Continuation) else []
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
