"""Messages between a worker and its children: lines of JSON on a socket, and how what they carry is represented in JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sqlalchemy import inspect

from sa_jobqueue.context import AttemptContext, BlockerOutcome, Blockers, ClaimedJob, Continuation
from sa_jobqueue.errors import AttemptSignal, Cancel, Discard, InvalidOutputError, IsolatedHandlerError, Retry, Snooze
from sa_jobqueue.models import JobClass, JobMixin, WaitFor
from sa_jobqueue.operations.completions import Finished, attach
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.tracing import current_traceparent
from sa_jobqueue.types import AttemptOutcome, DeadReason, JobStatus
from sa_jobqueue.worker.finish.outcomes import carrying, of_error

Message = dict[str, Any]
"""One line. Its `is` names its kind."""

MAX_LINE: Final = 16 * 2**20
"""Bytes that a child may send in one message. The text of an output of 1 MiB has twice that at most."""
_DERIVED: Final = frozenset(
    {"chain_id", "chain_type_name", "chain_index", "status", "open_blockers", "attempt", "scheduled_at", "changed_xid"}
)
"""Columns of a new job that its class fills in itself."""


def line(message: Message) -> bytes:
    """Return a message as it is sent: JSON has no line break within."""
    return json.dumps(message).encode() + b"\n"


def of_attempt(attempt: AttemptContext, blockers: Blockers[Any] | None) -> Message:
    """Return the request to run an attempt."""
    outcomes = [] if blockers is None else [packed(_fields(outcome)) for outcome in blockers.outcomes]
    request = {"is": "run", "job": packed(attempt.job._asdict()), "blockers": outcomes}
    return request | {"worker_id": attempt.worker_id, "span": current_traceparent()}


def job_of(request: Message) -> ClaimedJob:
    """Return the job of a request."""
    return ClaimedJob(**unpacked(request["job"]))


def blockers_of(request: Message, job_type: JobType) -> Blockers[Any] | None:
    """Return the blockers of a request; None if the handler does not take them."""
    if job_type.signature.blockers_argument is None:
        return None
    outcomes = tuple(BlockerOutcome(**unpacked(packed_outcome)) for packed_outcome in request["blockers"])
    return Blockers(job_type.decode_blockers([outcome.output for outcome in outcomes]), outcomes)


def of_return(returned: Any, job_type: JobType) -> Message:
    """Return a handler's return value, as an answer. Raises: InvalidOutputError."""
    if not isinstance(returned, Continuation):
        return {"is": "output", "output": json.dumps(job_type.encode_output(returned))}
    job = returned.job
    if not isinstance(job, JobMixin):
        raise InvalidOutputError(f"a continuation is of a job, not of a {type(job).__name__}")
    job_type.check_continuation(job.type_name, None if job._handler is None else job._handler.job_type)
    columns = {column.key for column in inspect(type(job)).column_attrs} - _DERIVED
    values = {name: value for name, value in job.__dict__.items() if name in columns} | {"delay": job._delay, "at": job._at}
    try:
        waits = [packed({"chain": blocker.chain_id, "on_failure": blocker.on_failure}) for blocker in job._blockers]
        return {"is": "continuation", "values": packed(values), "blockers": waits}
    except TypeError as error:
        raise InvalidOutputError(f"the continuation cannot be carried to the worker: {error}") from error


def of_raise(job: ClaimedJob, error: BaseException, job_type: JobType | None) -> Message:
    """Return an exception as an answer: decided in the child, where the retry policy can look at it."""
    end = _fields(of_error(job, error, job_type))
    del end["job"]
    return {"is": "end", "signal": type(error).__name__ if isinstance(error, AttemptSignal) else None, "end": packed(end)}


def result_of(answer: Message, job: ClaimedJob, model: JobClass) -> str | JobMixin[Any]:
    """Return the result of an attempt from an answer: its output as JSON text, or the next job of its chain.

    Raises: what ended it without success, carrying that end; InvalidOutputError and InvalidJobError for an unusable job.
    """
    match answer["is"]:
        case "output":
            output: str = answer["output"]
            return output
        case "continuation":
            blockers = [WaitFor(**unpacked(packed_blocker)) for packed_blocker in answer["blockers"]]
            return attach(model, job, Continuation(model(**unpacked(answer["values"]), blockers=blockers, _handler=None)))
    end = Finished(job, **unpacked(answer["end"]))
    raise carrying(_raised(answer["signal"], end), end)


def _raised(signal: str | None, end: Finished) -> BaseException:
    """Return the exception to raise in the worker, for middleware to see; the outcome is decided."""
    description = end.error or {"type": "", "message": "", "traceback": ""}
    when: dict[str, Any] = {"at": end.at} if end.at is not None else {"delay": end.delay}
    match signal:
        case "Snooze":
            return Snooze(**when)
        case "Retry" if end.status is JobStatus.PENDING:
            return Retry(**when, reason=description["message"])
        case "Discard":
            return Discard(description["message"])
        case "Cancel":
            return Cancel(description["message"])
    return IsolatedHandlerError(description["type"], description["message"], description["traceback"])


def of_record(record: logging.LogRecord) -> Message:
    """Return a log record, as a message."""
    values = record.__dict__ | {"msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and record.exc_info[0]:
        values["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {"is": "log", "record": {name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def replay(message: Message, job: ClaimedJob | None) -> None:
    """Handle a child's log record as one of this process, with the ids of its job."""
    record = logging.makeLogRecord(message["record"])
    logger = logging.getLogger(record.name)
    if job is not None:
        record.__dict__ |= {"job_id": str(job.id), "job_attempt": job.attempt, "job_type": job.type_name}
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def packed(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return columns as JSON, each with its kind beside it. Raises: TypeError naming the one that is of no kind we know."""
    return {name: _pack(name, value) for name, value in values.items()}


def unpacked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as they were."""
    return {name: value if kind == "json" else _KINDS[kind][2](value) for name, (kind, value) in values.items()}


_KINDS: Final[dict[str, tuple[type, Any, Any]]] = {
    "uuid": (UUID, str, UUID),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "timedelta": (timedelta, lambda delta: [delta.days, delta.seconds, delta.microseconds], lambda parts: timedelta(*parts)),
    "decimal": (Decimal, str, Decimal),
} | {kind.__name__: (kind, str, kind) for kind in (JobStatus, AttemptOutcome, DeadReason)}
"""Values that are no JSON: their type, how they are written, and how they are read."""


def _pack(name: str, value: Any) -> list[Any]:
    for kind, (value_type, write, _) in _KINDS.items():
        if isinstance(value, value_type):
            return [kind, write(value)]
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be carried between processes: {error}") from None
    return ["json", value]


def _fields(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in fields(instance)}
