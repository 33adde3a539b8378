"""Worker events as records of standard `logging`: all wording and all levels in one place.

Records carry fields in `extra`, for formatters that write JSON. None carries a payload: an error appears as its type and
the first line of its message; the whole of it is in the database.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from sqlalchemy.exc import DBAPIError

from sa_jobqueue import events as told
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.printable import printable
from sa_jobqueue.redaction import is_redacted, redacted_error
from sa_jobqueue.types import AttemptOutcome

LOGGER_NAME: Final = "sa_jobqueue.worker"
MAX_ERROR: Final = 300
"""Characters kept of an error's message."""
_DETAILS: Final = (told.JobStarted, told.JobCompleted, told.JobUnblocked)
"""What is told at the level DEBUG."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one event becomes: `message` is formatted with `arguments`, `fields` go to `extra`."""

    level: int
    message: str
    arguments: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    exception: BaseException | None = None


def subscribe(events: told.EventBus, logger: logging.Logger | None = None) -> None:
    """Log every event of a worker from now on, by default to the logger `sa_jobqueue.worker`."""
    target = logger or logging.getLogger(LOGGER_NAME)

    def write(event: told.Event) -> None:
        record = describe(event)
        if target.isEnabledFor(record.level):
            fields = {"event": type(event).__name__} | record.fields
            # Whatever formatter the application has: a name or an error's message must not make a second line of it.
            arguments = [printable(one) if isinstance(one, str) else one for one in record.arguments]
            target.log(record.level, record.message, *arguments, extra=fields, exc_info=record.exception)

    # Two of each job: without being asked first their words, and they themselves, are made to be thrown away.
    events.subscribe(write, kinds=_DETAILS, wanted=lambda: target.isEnabledFor(logging.DEBUG))
    events.subscribe(write, kinds=[kind for kind in get_args(told.Event) if kind not in _DETAILS])


def describe(event: told.Event) -> Record:
    """Return the record of an event: its level, its words and its fields. Pure."""
    if isinstance(event, told.AttemptEvent):
        return _of_attempt(event)
    match event:
        case told.WorkerStarted():
            return Record(logging.INFO, "worker %s started", (event.worker_id,), {"worker_id": event.worker_id})
        case told.SettingsChanged():
            paused = (", ".join(event.paused_queues) or "none", ", ".join(event.paused_types) or "none")
            fields = {"worker_id": event.worker_id, "concurrency": event.concurrency}
            more = {"paused_queues": list(event.paused_queues), "paused_types": list(event.paused_types)}
            words = "worker %s runs %d jobs at once; paused queues: %s; paused types: %s"
            return Record(logging.INFO, words, (*fields.values(), *paused), fields | more)
        case told.SchemaAhead():
            fields = {"worker_id": event.worker_id, "schema_version": event.version, "known_version": event.known}
            words = "worker %s runs on tables of version %d and knows those of %d: it is of the release before, replace it"
            return Record(logging.WARNING, words, tuple(fields.values()), fields)
        case told.PoolerFound():
            seconds = event.poll_interval.total_seconds()
            fields = {"worker_id": event.worker_id, "listens": event.listens, "poll_seconds": seconds}
            how = "listens on a connection of its own" if event.listens else f"polls every {seconds:g} s"
            words = "worker %s works through a connection pooler and %s"
            return Record(logging.INFO, words, (event.worker_id, how), fields)
        case told.DrainRequested():
            words = "worker %s was asked to drain: running jobs may finish"
            return Record(logging.INFO, words, (event.worker_id,), {"worker_id": event.worker_id})
        case told.WorkerStopped():
            fields = {"worker_id": event.worker_id, "released": event.released}
            words = f"worker %s stopped, %d {'job' if event.released == 1 else 'jobs'} given back"
            return Record(logging.INFO, words, tuple(fields.values()), fields)
        case told.MemoryExceeded():
            fields = {"worker_id": event.worker_id, "resident_bytes": event.resident_bytes, "limit_bytes": event.limit_bytes}
            words = "worker %s holds %.0f MiB, over its limit of %.0f: running jobs may finish, then it stops"
            sizes = (event.resident_bytes / 2**20, event.limit_bytes / 2**20)
            return Record(logging.WARNING, words, (event.worker_id, *sizes), fields)
        case told.HeartbeatFailing():
            fields = {"worker_id": event.worker_id, "silent_seconds": event.silent.total_seconds()}
            words = "worker %s could not beat for %.1f s and stops its jobs, before others start them"
            return Record(logging.ERROR, words, tuple(fields.values()), fields)
        case told.UnknownTypesPending():
            words = "due jobs of types that no worker has a handler for stay pending: %s"
            return Record(logging.WARNING, words, (", ".join(event.type_names),), {"job_types": list(event.type_names)})
        case told.UnservedQueues():
            words = "due jobs of queues that no worker serves stay pending: %s"
            return Record(logging.WARNING, words, (", ".join(event.queue_names),), {"queues": list(event.queue_names)})
        case told.ChainsPruned():
            fields = {"chains": event.chains, "jobs": event.jobs}
            words = "%d chains of %d jobs were deleted: their time was up"
            return Record(logging.INFO, words, tuple(fields.values()), fields)
        case told.DeadLettersPruned():
            words = "%d dead letters were deleted: resolved long enough ago"
            return Record(logging.INFO, words, (event.letters,), {"dead_letters": event.letters})
        case told.ScheduleFired() | told.ScheduleBroken() | told.SchedulesUndeclared():
            return _of_schedule(event)
        case told.ProviderFailed():
            words = "what handlers were lent could not be closed: %s"
            return Record(logging.ERROR, words, (error_line(event.error),), exception=event.error)
        case told.SelectorFailed():
            fields = {"worker_id": event.worker_id, "queue": event.queue, "selector": event.selector}
            words = "%s failed to choose: jobs of the queue %s start in their ordinary order until it does: %s"
            shown = None if isinstance(event.error, (DBAPIError, JobQueueError, TimeoutError)) else event.error
            return Record(logging.ERROR, words, (event.selector, event.queue, error_line(event.error)), fields, shown)
        case told.WriteQuarantined():
            fields = {"worker_id": event.worker_id, "statement": event.write.value, "subject": event.subject}
            fields |= {"sqlstate": event.sqlstate, "failures": event.failures, "delay_seconds": event.delay.total_seconds()}
            words = "write quarantined statement=%s subject=%s failures=%d retry_in=%.0fs: %s"
            values = (event.write.value, event.subject, event.failures, event.delay.total_seconds(), error_line(event.error))
            return Record(logging.ERROR, words, values, fields)
        case told.ComponentFailed():
            delay = event.delay.total_seconds()
            # A driver's error quotes the statement's parameters, outputs of jobs among them; its cause says enough.
            of_driver = isinstance(event.error, DBAPIError)
            return Record(
                logging.ERROR,
                "the %s failed and starts again in %.1f s: %s",
                (event.component, delay, error_line(event.error)),
                {"component": event.component, "delay_seconds": delay},
                None if of_driver else event.error,
            )


def _of_schedule(event: told.ScheduleFired | told.ScheduleBroken | told.SchedulesUndeclared) -> Record:
    match event:
        case told.SchedulesUndeclared():
            words = "schedules that this code does not declare any more fire on, until somebody deletes them: %s"
            return Record(logging.WARNING, words, (", ".join(event.schedules),), {"schedules": list(event.schedules)})
        case told.ScheduleBroken():
            words = "schedule %s cannot fire and rests until it is mended: %s"
            return Record(logging.ERROR, words, (event.schedule, event.reason), {"schedule": event.schedule})
    fields: dict[str, Any] = {"schedule": event.schedule, "job_ids": [str(job_id) for job_id in event.job_ids]}
    fields["fire_times"] = [time.isoformat() for time in event.fire_times]
    times = ", ".join(fields["fire_times"]) or "no time"
    if event.missed_since is None:
        return Record(logging.INFO, "schedule %s fired for %s", (event.schedule, times), fields)
    fields["missed_since"] = since = event.missed_since.isoformat()
    words = "schedule %s fired for %s; times from %s on were left out"
    return Record(logging.WARNING, words, (event.schedule, times, since), fields)


def _of_attempt(event: told.AttemptEvent) -> Record:
    words = "job %s (%s) attempt %d "
    arguments: tuple[Any, ...] = (event.job_id, event.type_name, event.attempt)
    fields: dict[str, Any] = {"job_id": str(event.job_id), "job_type": event.type_name, "job_attempt": event.attempt}

    def record(level: int, end: str, *more: Any, outcome: str, **others: Any) -> Record:
        return Record(level, words + end, arguments + more, fields | {"job_outcome": outcome} | others)

    match event:
        case told.JobStarted():
            return record(logging.DEBUG, "started", outcome="started")
        case told.JobCompleted():
            seconds = event.ran.total_seconds()
            return record(logging.DEBUG, "completed in %.3f s", seconds, outcome="completed", ran_seconds=seconds)
        case told.JobRescheduled():
            delay, outcome = event.delay.total_seconds(), event.outcome.value
            level = logging.INFO if event.outcome in _EXPECTED else logging.WARNING
            ended = outcome.replace("_", " ")
            when, due = ("at %s", event.at.isoformat()) if event.at else ("in %.1f s", delay)
            more: dict[str, Any] = {"due_at": due} if event.at else {"delay_seconds": delay}
            if event.error is None:
                return record(level, f"%s, due again {when}", ended, due, outcome=outcome, **more)
            kind, line = _kind(event.error), _line(event)
            more["error_type"] = kind
            return record(level, f"%s, due again {when}: %s", ended, due, line, outcome=outcome, **more)
        case told.JobUnblocked():
            return record(logging.DEBUG, "is no longer blocked", outcome="unblocked")
        case told.JobDied():
            more = {"dead_reason": event.reason.value, "error_type": _kind(event.error)}
            ended = event.reason.value.replace("_", " ")
            return record(logging.ERROR, "is dead (%s): %s", ended, _line(event), outcome="dead", **more)
        case told.JobCancelled():
            return record(logging.INFO, "was cancelled by its handler", outcome="cancelled")
        case told.MiddlewareFailed():
            end = "is completed, but its middleware failed afterwards: %s"
            hidden = is_redacted(event.type_name)
            line, kind = _kind(event.error) if hidden else error_line(event.error), _kind(event.error)
            written = record(logging.ERROR, end, line, outcome="completed", error_type=kind)
            return written if hidden or isinstance(event.error, DBAPIError) else replace(written, exception=event.error)
        case told.AttemptLost():
            return record(logging.WARNING, "was no longer this worker's, nothing was written", outcome="lost")
        case told.JobRescued(died=True):
            end = "was taken back from worker %s and is dead: it was its last"
            return record(logging.ERROR, end, event.worker_id, outcome="lost", worker_id=event.worker_id)
        case told.JobRescued():
            end = "was taken back from worker %s, which is gone or was too slow"
            return record(logging.WARNING, end, event.worker_id, outcome="lost", worker_id=event.worker_id)
    return record(logging.DEBUG, "%s", type(event).__name__, outcome="unknown")


_EXPECTED: Final = frozenset({AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED})


def _line(event: told.JobRescheduled | told.JobDied) -> str:
    return error_line(redacted_error(event.type_name, event.error))


def error_line(error: Any) -> str:
    """Return an error on one line: its type and the first line of its message. Takes one as raised or as stored."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    message = str(error) if isinstance(error, BaseException) else _stored(error, "message")
    first = next(iter(message.strip().splitlines()), "")[:MAX_ERROR]
    return f"{_kind(error)}: {first}" if first else _kind(error)


def _kind(error: Any) -> str:
    if isinstance(error, BaseException):
        return type(error).__name__
    return _stored(error, "type") or "no error"


def _stored(error: Any, key: str) -> str:
    return str(error.get(key) or "") if isinstance(error, dict) else ""
