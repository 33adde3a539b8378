"""How an attempt ended in a child, as data: written there, and read by a worker that believes none of it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import inspect

from sa_jobqueue import payloads
from sa_jobqueue.context import ClaimedJob, Continuation
from sa_jobqueue.errors import (
    AttemptSignal,
    Cancel,
    Discard,
    InvalidOutputError,
    InvalidPayloadError,
    IsolatedHandlerError,
    Retry,
    Snooze,
)
from sa_jobqueue.models import JobMixin, WaitFor
from sa_jobqueue.operations.completing import attach
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import LATEST, LONGEST, AttemptOutcome, DeadReason, JobStatus
from sa_jobqueue.worker.finish.outcomes import MAX_TEXT, Finished, carrying, clean, of_error
from sa_jobqueue.worker.run.isolation.messages import Message, packed, unpacked

_DERIVED: Final = frozenset(
    {"chain_id", "chain_type_name", "chain_index", "status", "open_blockers", "attempt", "scheduled_at", "changed_xid"}
)
"""Columns of a new job that its class fills in itself."""
_FAILURES: Final = frozenset({AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT})


def of_return(returned: Any, job_type: JobType) -> Message:
    """Return a handler's return value, as an answer. Raises: InvalidOutputError."""
    if not isinstance(returned, Continuation):
        return {"is": "output", "output": json.dumps(job_type.encode_output(returned))}
    job = returned.job
    if not isinstance(job, JobMixin):
        raise InvalidOutputError(f"a continuation is of a job, not of a {type(job).__name__}")
    job_type.check_continuation(job.type_name, None if job._handler is None else job._handler.job_type)
    columns = _carried(type(job))
    try:
        carried = packed({name: value for name, value in job.__dict__.items() if name in columns})
        waits = [[packed({"id": one.chain_id})["id"], one.on_failure] for one in job._blockers]
    except TypeError as error:
        raise InvalidOutputError(f"the continuation cannot be carried to the worker: {error}") from error
    return {"is": "continuation", "columns": carried, "due": packed({"delay": job._delay, "at": job._at}), "blockers": waits}


def _carried(model: type[JobMixin[Any]]) -> set[str]:
    return {column.key for column in inspect(model).column_attrs} - _DERIVED


def of_raise(job: ClaimedJob, error: BaseException, job_type: JobType | None) -> Message:
    """Return what an exception means, as an answer: decided here, where the retry policy can look at it."""
    end = of_error(job, error, job_type)
    return {
        "is": "end",
        "signal": type(error).__name__ if isinstance(error, AttemptSignal) else None,
        "status": end.status.value,
        "outcome": end.outcome.value,
        "due": packed({"delay": end.delay, "at": end.at}),
        "by_default": end.by_default,
        "error": end.error,
        "fingerprint": end.fingerprint,
        "reason": end.reason and end.reason.value,
    }


def result_of(answer: Message, job: ClaimedJob, model: type[JobMixin[Any]]) -> str | JobMixin[Any]:
    """Return what an answer says the attempt came to: its output as JSON text, or the next job of its chain.

    Raises: what ended it without success, carrying that end; InvalidOutputError and InvalidJobError for what is not usable;
    KeyError, TypeError or ValueError when it is no answer at all.
    """
    match answer["is"]:
        case "output":
            return _output(answer["output"])
        case "continuation":
            columns, due = unpacked(answer["columns"]), unpacked(answer["due"])
            if not columns.keys() <= _carried(model):
                raise ValueError(f"no continuation sets {', '.join(columns.keys() - _carried(model))}")
            blockers = [WaitFor(unpacked({"id": one})["id"], on_failure) for one, on_failure in answer["blockers"]]
            return attach(model, job, Continuation(model(**columns, **due, blockers=blockers, _handler=None)))
        case "end":
            raise _raised(answer, _finished(answer, job))
    raise ValueError(f"{answer['is']!r} is no answer")


def _output(text: str) -> str:
    # One output that jsonb refuses would fail the statement that completes all others.
    try:
        payloads.check_json("output", json.loads(text))
    except InvalidPayloadError as error:
        raise InvalidOutputError(f"the handler's return value is not usable: {error}") from error
    return text


def _finished(answer: Message, job: ClaimedJob) -> Finished:
    status, outcome = JobStatus(answer["status"]), AttemptOutcome(answer["outcome"])
    reason = None if answer["reason"] is None else DeadReason(answer["reason"])
    due = unpacked(answer["due"])
    at: datetime | None = due["at"]
    fingerprint = answer["fingerprint"]
    legal = {
        JobStatus.PENDING: (outcome in _FAILURES or outcome is AttemptOutcome.SNOOZED) and reason is None,
        JobStatus.DEAD: outcome in _FAILURES and reason is not None,
        JobStatus.CANCELLED: outcome is AttemptOutcome.CANCELLED and reason is None,
    }
    if not legal.get(status, False):
        raise ValueError(f"no attempt ends {outcome} with its job {status}")
    if at is not None and (not isinstance(at, datetime) or at.utcoffset() is None or at >= LATEST):
        raise ValueError(f"{at!r} is no time to be due at")
    return Finished(
        job,
        status,
        outcome,
        delay=min(max(due["delay"], timedelta(0)), LONGEST),
        at=at,
        error=None if answer["error"] is None else _error(answer["error"]),
        fingerprint=None if fingerprint is None else clean(str(fingerprint))[:16],
        reason=reason,
        uncounted=outcome is AttemptOutcome.SNOOZED,
        by_default=status is JobStatus.PENDING and outcome in _FAILURES and answer["by_default"] is True,
    )


def _error(error: dict[str, Any]) -> dict[str, Any]:
    return {name: clean(str(error[name])[-MAX_TEXT:]) for name in ("type", "message", "traceback")}


def _raised(answer: Message, end: Finished) -> BaseException:
    """Return the exception to raise in the worker, for middleware to see; the outcome is decided."""
    description = end.error or {"type": "", "message": "", "traceback": ""}
    when: dict[str, Any] = {"at": end.at} if end.at is not None else {"delay": end.delay}
    error: BaseException
    match answer["signal"]:
        case "Snooze":
            error = Snooze(**when)
        case "Retry" if end.status is JobStatus.PENDING:
            error = Retry(**when, reason=description["message"])
        case "Discard":
            error = Discard(description["message"])
        case "Cancel":
            error = Cancel(description["message"])
        case _:
            error = IsolatedHandlerError(description["type"], description["message"], description["traceback"])
    return carrying(error, end)
