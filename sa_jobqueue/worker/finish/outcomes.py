"""Results of attempts in the form in which they are written: errors as JSON, and the outcome of each exception."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy.exc import DBAPIError

from sa_jobqueue.context import AttemptContext, ClaimedJob
from sa_jobqueue.db.splitting import cause_of, in_parts
from sa_jobqueue.display.printable import message_of
from sa_jobqueue.errors import (
    AttemptTimeoutError,
    Cancel,
    DeadlinePassedError,
    Discard,
    ProcessDiedError,
    Retry,
    Snooze,
    StepRefusedError,
    UnreadableInputError,
    UnrecordedAttemptError,
    UnstorableOutputError,
)
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.completions import Finished
from sa_jobqueue.policies.retry import Backoff, RetryPolicy
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import LONGEST, AttemptOutcome, DeadReason, JobStatus
from sa_jobqueue.worker.escapes import original

RetryOf: TypeAlias = Callable[[str, str], Backoff | None]
"""Returns the retry backoff of a queue and a fairness key in it."""

_FALLBACK: Final = Backoff()
_OURS: Final = str(Path(__file__).parents[1])
_END: Final = "_sa_jobqueue_end"
"""Attribute of an exception that carries its outcome."""

MAX_TEXT: Final = 10_000
"""Maximum characters of a message or a traceback; a traceback keeps its end, where the error is."""


@dataclass(slots=True)  # not frozen, which would double the cost per job
class Completed:
    """The handler returned, and its completion is still to be written: with an output as JSON text, or a continuation."""

    job: ClaimedJob
    result: str | JobMixin[Any]
    seconds: float
    """How long the attempt ran."""


E = TypeVar("E", Completed, Finished)


@dataclass(slots=True)
class WriteOutcome:
    """The outcome of writing some results."""

    ids: set[Any] = field(default_factory=set)
    """Jobs whose result was written."""
    failed: dict[Any, Finished] = field(default_factory=dict)
    """Attempts whose continuation or output cannot be written, by job: they fail."""
    locked_ids: set[Any] = field(default_factory=set)
    """Jobs whose rows another transaction has locked."""
    refused: list[tuple[Completed | Finished, Exception]] = field(default_factory=list)
    """Results that cannot be written."""

    async def add(self, ends: Sequence[E], write: Callable[[Sequence[E]], Awaitable[Iterable[Any]]]) -> None:
        """Write results together, and what fails alone not at all; `write` returns the ids of the jobs that it wrote."""
        id_parts, refused = await in_parts(ends, write)
        self.ids.update(*id_parts)
        for end, error in refused:
            self.refuse(end, error)

    def refuse(self, end: Completed | Finished, error: Exception) -> None:
        """Record a result that failed alone: an error of Python ends the attempt, one of the database may pass."""
        if isinstance(end, Finished) or isinstance(error, DBAPIError):
            self.refused.append((end, error))
        else:
            self.failed[end.job.id] = of_error(end.job, cause_of(error), None)


def released(job: ClaimedJob) -> Finished:
    """Release a job unfinished, due now, the attempt not counted."""
    return Finished(job, JobStatus.PENDING, AttemptOutcome.RELEASED, uncounted=True)


def of_error(job: ClaimedJob, error: BaseException, job_type: JobType | None) -> Finished:
    """Return the outcome that an error in or around a handler means for the job.

    A signal has its own outcome; a payload that does not fit never will; anything else is retried by the type's policy
    until the attempts are used up.
    """
    error = original(error)
    if isinstance(error, StepRefusedError) and error.__cause__ is not None:  # as if the handler had not caught it
        error = error.__cause__
    decided: Finished | None = getattr(error, _END, None)
    if decided is not None:
        return decided
    signal, error = error, _meant(error)
    fingerprint = fingerprint_of(error)

    def dead(reason: DeadReason, outcome: AttemptOutcome = AttemptOutcome.FAILED) -> Finished:
        return Finished(job, JobStatus.DEAD, outcome, error=describe(error), fingerprint=fingerprint, reason=reason)

    match signal:
        case Snooze():
            snoozed, delay = AttemptOutcome.SNOOZED, signal.delay or timedelta(0)
            return Finished(job, JobStatus.PENDING, snoozed, delay=delay, at=signal.at, uncounted=True)
        case Cancel():
            return Finished(
                job, JobStatus.CANCELLED, AttemptOutcome.CANCELLED, error=describe(error), fingerprint=fingerprint
            )
        case DeadlinePassedError():
            # As a waiting job at its deadline. No dead letter: it could not run again.
            timed_out = AttemptOutcome.TIMED_OUT
            return Finished(job, JobStatus.CANCELLED, timed_out, error=describe(error), fingerprint=fingerprint)
        case Discard():
            return dead(DeadReason.DISCARDED)
        case UnstorableOutputError():
            return dead(DeadReason.DISCARDED)
        case UnreadableInputError():
            return dead(DeadReason.INVALID_INPUT)
    is_timeout = isinstance(error, AttemptTimeoutError)
    outcome = AttemptOutcome.TIMED_OUT if is_timeout else AttemptOutcome.FAILED
    if job.attempt >= job.max_attempts:
        return dead(DeadReason.TIMED_OUT if is_timeout else DeadReason.EXHAUSTED, outcome)
    at: datetime | None = None
    wait: timedelta | None
    policy = None if job_type is None else job_type.retry
    if isinstance(signal, Retry):
        wait, at = signal.delay or timedelta(0), signal.at
    else:
        wait = _delay(policy or _FALLBACK, job.attempt, error)
    if wait is None:
        return dead(DeadReason.DISCARDED, outcome)
    by_default = policy is None and not isinstance(signal, Retry)
    end = Finished(job, JobStatus.PENDING, outcome, delay=wait, at=at, error=describe(error), fingerprint=fingerprint)
    return replace(end, by_default=by_default)


def failed(
    attempt: AttemptContext,
    error: BaseException,
    job_type: JobType | None,
    *,
    ran: timedelta,
    default: Backoff | None = None,
) -> Finished:
    """Return the same for an attempt that ran here, with its duration and the notes made about it.

    `default`: the backoff if neither the handler nor its error set the time of the next try.
    """
    end = _with_default(of_error(attempt.job, error, job_type), error, default)
    return replace(end, ran=ran, error=None if end.error is None else attempt.notes | end.error)


def unrecorded(job: ClaimedJob, job_type: JobType | None, *, default: Backoff | None = None) -> Finished:
    """Return the outcome of an attempt that has ended here and still runs by its row. `default`: as for `failed`."""
    error = UnrecordedAttemptError(job.id, job.attempt)
    return _with_default(of_error(job, error, job_type), error, default)


def _with_default(end: Finished, error: BaseException, default: Backoff | None) -> Finished:
    return replace(end, delay=default(end.job.attempt, error)) if end.by_default and default is not None else end


def carrying(error: BaseException, end: Finished) -> BaseException:
    """Return an exception that carries an outcome decided elsewhere, which `of_error` returns unchanged."""
    setattr(error, _END, end)
    return error


def _meant(error: BaseException) -> BaseException:
    """Return the error to record: for a `Retry` without a reason, the exception it was raised from or while handling."""
    if not isinstance(error, Retry) or error.reason:
        return error
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__) or error


def _delay(policy: RetryPolicy, attempt: int, error: BaseException) -> timedelta | None:
    try:
        delay = policy(attempt, error)
        return None if delay is None else min(max(delay, timedelta(0)), LONGEST)
    except BaseException as fault:  # a policy is user code as well, and must not prevent the attempt from ending
        error.add_note(f"its retry policy failed: {fault!r}; the default backoff was used")
        return _FALLBACK(attempt, error)


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: its type, its message and its traceback, each bounded, with nothing jsonb refuses."""
    return {
        "type": _name(error),
        "message": clean(message_of(error)[:MAX_TEXT]),
        "traceback": clean(_traceback(error)[-MAX_TEXT:]),
    }


def _traceback(error: BaseException) -> str:
    """Return the traceback from the handler's first frame on; a timeout's consists of our frames, so it is left out."""
    if isinstance(error, AttemptTimeoutError | DeadlinePassedError):
        return ""
    if isinstance(error, ProcessDiedError):
        return error.stack
    first = frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(_OURS) and frame.tb_next is not None:
            first = frame.tb_next
        frame = frame.tb_next
    return "".join(traceback.TracebackException(type(error), error, first).format())


def fingerprint_of(error: BaseException) -> str:
    """Return 16 hex digits that errors of one type raised in one function share, whatever their message or line."""
    of_us = isinstance(error, (AttemptTimeoutError, DeadlinePassedError, ProcessDiedError))
    frames = None if of_us else traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    if isinstance(error, ProcessDiedError):
        place = f"{error.signal}:{error.status}"
    return hashlib.sha256(f"{_name(error)}@{place}".encode()).hexdigest()[:16]


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def clean(text: str) -> str:
    """Return a text without the characters that jsonb refuses."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
