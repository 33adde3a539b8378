"""Worker events as records of the standard `logging`: all messages and levels.

Records have fields in `extra`, for formatters that write JSON. They contain no payloads. The error of a failed attempt is
logged as its type, the first line of its message, and its traceback without the statement's values that a driver quotes;
for redacted job types only as its type.

Every `Worker` logs to `sa_jobqueue.worker`; lines about single attempts go to its child `sa_jobqueue.worker.attempts`, so
that either can be turned off by its level.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, StatementError

from sa_jobqueue import events as worker_events
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.display.printable import message_of, printable
from sa_jobqueue.display.redaction import is_redacted, redacted_error
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.types import AttemptOutcome

LOGGER_NAME: Final = "sa_jobqueue.worker"
ATTEMPTS: Final = "attempts"
"""Child logger for the lines about single attempts."""
MAX_ERROR: Final = 300
"""Maximum length of an error's message."""
_FREQUENT: Final = {
    worker_events.JobStarted: logging.DEBUG,
    worker_events.JobUnblocked: logging.DEBUG,
    worker_events.StepCompleted: logging.DEBUG,
    worker_events.JobCompleted: logging.INFO,
}
"""Events of every job, and their levels: not even created while their level is off."""
_QUOTED: Final = re.compile(r"^(\[parameters: |DETAIL: ).*\n?", re.MULTILINE)
"""Lines of a driver's error that quote values, which may be payloads."""


@dataclass(frozen=True, slots=True)
class Record:
    """The log record of an event: `message` is formatted with `arguments`, `fields` go to `extra`."""

    level: int
    message: str
    arguments: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    exception: BaseException | None = None
    traceback: str = ""
    """Of an error that is known only as it is stored."""
    stack: str = ""
    """Of another thread."""


def subscribe(events: worker_events.EventBus, logger: logging.Logger | None = None) -> None:
    """Log the events of a worker to `logger`, by default `sa_jobqueue.worker`, where a `Worker` already logs its own.

    If the events are already logged there, nothing changes.
    """
    write = _Writer(logger or logging.getLogger(LOGGER_NAME))
    if events.is_subscribed(write):
        return
    attempts = write.target.getChild(ATTEMPTS)
    for kind, level in _FREQUENT.items():
        events.subscribe(write, kinds=[kind], wanted=partial(attempts.isEnabledFor, level))
    events.subscribe(write, kinds=worker_events.every_kind() - _FREQUENT.keys())


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes events to a logger. Equal if the loggers are."""

    target: logging.Logger

    def __call__(self, event: worker_events.Event) -> None:
        target = self.target.getChild(ATTEMPTS) if isinstance(event, worker_events.AttemptEvent) else self.target
        _write(target, type(event).__name__, describe(event))


def _write(target: logging.Logger, event: str, record: Record) -> None:
    if not target.isEnabledFor(record.level):
        return
    # Escaped for any formatter: a name or an error's message must not start a second line.
    arguments = tuple(printable(one) if isinstance(one, str) else one for one in record.arguments)
    error = record.exception
    raised = None if error is None else (type(error), error, error.__traceback__)
    written = target.makeRecord(
        *(target.name, record.level, __file__, 0, record.message, arguments, raised),
        func="describe",
        extra={"event": event} | record.fields,
        sinfo=printable(record.stack, newline="\n") or None,
    )
    if record.traceback:  # the standard formatters append it as they do the text of an exception
        written.exc_text = printable(record.traceback, newline="\n")
    target.handle(written)


def warn_of_blocked_loop(seconds: float, name: str, job: ClaimedJob | None, handler: str, stack: str) -> None:
    """Log what blocks a worker's event loop. No event: the loop that delivers events is the one that is blocked.

    `name`: the job type, or the name of a task that runs no job. `stack`: of the loop's thread.
    """
    what = f"task {name}" if job is None else f"job {job.id} ({name}) attempt {job.attempt}"
    what += f", handler {handler}" if handler else ""
    fields: dict[str, Any] = {"blocked_seconds": round(seconds, 1), "task": name, "handler": handler}
    if job is not None:
        fields |= {"job_id": str(job.id), "job_type": name, "job_attempt": job.attempt}
    words = (
        "event loop blocked for over %.1f s by %s; the worker's other async jobs wait: declare the handler with def instead "
        "of async def, or call what blocks with asyncio.to_thread"
    )
    stack = f"Stack (most recent call last):\n{stack.rstrip()}"
    record = Record(logging.WARNING, words, (seconds, what), fields, stack=stack)
    _write(logging.getLogger(LOGGER_NAME), "EventLoopBlocked", record)


def describe(event: worker_events.Event) -> Record:
    """Return the log record of an event. Pure."""
    if isinstance(event, worker_events.AttemptEvent):
        return _of_attempt(event)
    match event:
        case worker_events.WorkerStarted():
            fields = {
                "worker_id": event.worker_id,
                "queues": list(event.queues),
                "concurrency": event.concurrency,
                "handlers": list(event.handlers),
                "database": event.database,
                "schema_version": event.schema_version,
                "max_connections": event.max_connections,
            }
            words = "worker %s started queues=%s concurrency=%d handlers=%s database=%s schema_version=%d max_connections=%d"
            return Record(logging.INFO, words, tuple(map(_listed, fields.values())), fields)
        case worker_events.SettingsChanged():
            paused = (", ".join(event.paused_queues) or "none", ", ".join(event.paused_types) or "none")
            fields = {"worker_id": event.worker_id, "concurrency": event.concurrency}
            more = {"paused_queues": list(event.paused_queues), "paused_types": list(event.paused_types)}
            words = "settings changed worker=%s concurrency=%d paused_queues=%s paused_types=%s"
            return Record(logging.INFO, words, (*fields.values(), *paused), fields | more)
        case worker_events.SettingsDiffer():
            differences = {
                queue: {setting: {"database": str(stored), "declared": str(now)} for setting, (stored, now) in of.items()}
                for queue, of in event.differences.items()
            }
            lines = [
                f"{queue} {setting}={stored} (declared: {now})"
                for queue, of in event.differences.items()
                for setting, (stored, now) in of.items()
            ]
            words = (
                "settings of queues differ from those declared in the code, and the database's apply until"
                " `sa-jobqueue queues sync MODULE:ATTRIBUTE` writes the declared ones: %s"
            )
            return Record(
                logging.WARNING, words, ("; ".join(lines),), {"worker_id": event.worker_id, "differences": differences}
            )
        case worker_events.SchemaAhead():
            fields = {"worker_id": event.worker_id, "schema_version": event.version, "known_version": event.known}
            words = "worker %s found schema version %d, newer than its own (%d); upgrade the worker"
            return Record(logging.WARNING, words, tuple(fields.values()), fields)
        case worker_events.PoolerFound():
            seconds = event.poll_interval.total_seconds()
            fields = {"worker_id": event.worker_id, "listens": event.listens, "poll_seconds": seconds}
            how = "it listens on a separate connection" if event.listens else f"it polls every {seconds:g} s"
            words = "worker %s is connected through a connection pooler; %s"
            return Record(logging.INFO, words, (event.worker_id, how), fields)
        case worker_events.DrainRequested():
            words = "worker %s is draining: running jobs may finish"
            return Record(logging.INFO, words, (event.worker_id,), {"worker_id": event.worker_id})
        case worker_events.WorkerStopped():
            fields = {"worker_id": event.worker_id, "released": event.released}
            words = f"worker %s stopped, %d {'job' if event.released == 1 else 'jobs'} released"
            return Record(logging.INFO, words, tuple(fields.values()), fields)
        case worker_events.MemoryExceeded():
            fields = {"worker_id": event.worker_id, "resident_bytes": event.resident_bytes, "limit_bytes": event.limit_bytes}
            words = "worker %s uses %.0f MiB, more than its limit of %.0f MiB; it drains and stops"
            sizes = (event.resident_bytes / 2**20, event.limit_bytes / 2**20)
            return Record(logging.WARNING, words, (event.worker_id, *sizes), fields)
        case worker_events.HeartbeatFailing():
            fields = {"worker_id": event.worker_id, "silent_seconds": event.silent.total_seconds()}
            words = "worker %s had no successful heartbeat for %.1f s; it stops its jobs before other workers rescue them"
            return Record(logging.ERROR, words, tuple(fields.values()), fields)
        case worker_events.UnknownTypesPending():
            words = "due jobs stay pending, as no worker has a handler for their types: %s"
            return Record(logging.WARNING, words, (", ".join(event.type_names),), {"job_types": list(event.type_names)})
        case worker_events.UnservedQueues():
            words = "due jobs stay pending, as no worker serves their queues: %s"
            return Record(logging.WARNING, words, (", ".join(event.queue_names),), {"queues": list(event.queue_names)})
        case worker_events.ChainsPruned():
            fields = {"chains": event.chains, "jobs": event.jobs}
            words = "pruned %d chains with %d jobs after their retention"
            return Record(logging.INFO, words, tuple(fields.values()), fields)
        case worker_events.DeadLettersPruned():
            words = "pruned %d resolved dead letters after their retention"
            return Record(logging.INFO, words, (event.dead_letters,), {"dead_letters": event.dead_letters})
        case worker_events.ScheduleFired() | worker_events.ScheduleBroken() | worker_events.SchedulesUndeclared():
            return _of_schedule(event)
        case worker_events.ProviderFailed():
            words = "dependency could not be closed: %s"
            return Record(logging.ERROR, words, (error_line(event.error),), exception=event.error)
        case worker_events.SelectorFailed():
            fields = {"worker_id": event.worker_id, "queue": event.queue, "selector": event.selector}
            words = "selector %s failed; jobs of queue %s start in the default order until it succeeds: %s"
            shown = None if isinstance(event.error, (DBAPIError, JobQueueError, TimeoutError)) else event.error
            return Record(logging.ERROR, words, (event.selector, event.queue, error_line(event.error)), fields, shown)
        case worker_events.WriteQuarantined():
            fields = {"worker_id": event.worker_id, "statement": event.write.value, "subject": event.subject}
            fields |= {"sqlstate": event.sqlstate, "failures": event.failures, "delay_seconds": event.delay.total_seconds()}
            words = "write quarantined statement=%s subject=%s failures=%d retry_in=%.0fs: %s"
            values = (event.write.value, event.subject, event.failures, event.delay.total_seconds(), error_line(event.error))
            return Record(logging.ERROR, words, values, fields)
        case worker_events.ComponentFailed():
            delay = event.delay.total_seconds()
            # No traceback: a driver's error quotes the statement's parameters, which may include outputs of jobs.
            of_driver = isinstance(event.error, StatementError)
            return Record(
                logging.ERROR,
                "%s failed, restarting in %.1f s: %s",
                (event.component, delay, error_line(event.error)),
                {"component": event.component, "delay_seconds": delay},
                None if of_driver else event.error,
            )
    return Record(logging.DEBUG, "%s", (type(event).__name__,))


def _of_schedule(
    event: worker_events.ScheduleFired | worker_events.ScheduleBroken | worker_events.SchedulesUndeclared,
) -> Record:
    match event:
        case worker_events.SchedulesUndeclared():
            words = "schedules are not declared in this code but still fire; delete them if they are obsolete: %s"
            return Record(logging.WARNING, words, (", ".join(event.schedules),), {"schedules": list(event.schedules)})
        case worker_events.ScheduleBroken():
            words = "schedule %s cannot fire until its row is corrected: %s"
            return Record(logging.ERROR, words, (event.schedule, event.reason), {"schedule": event.schedule})
    fields: dict[str, Any] = {"schedule": event.schedule, "job_ids": [str(job_id) for job_id in event.job_ids]}
    fields["fire_times"] = [time.isoformat() for time in event.fire_times]
    times = ", ".join(fields["fire_times"]) or "no time"
    if event.missed_since is None:
        return Record(logging.INFO, "schedule %s fired for %s", (event.schedule, times), fields)
    fields["missed_since"] = since = event.missed_since.isoformat()
    words = "schedule %s fired for %s; times from %s on were skipped"
    return Record(logging.WARNING, words, (event.schedule, times, since), fields)


def _of_attempt(event: worker_events.AttemptEvent) -> Record:
    words = "job %s (%s) attempt %d "
    arguments: tuple[Any, ...] = (event.job_id, event.type_name, event.attempt)
    fields: dict[str, Any] = {"job_id": str(event.job_id), "job_type": event.type_name, "job_attempt": event.attempt}

    def record(level: int, end: str, *more: Any, outcome: str, **others: Any) -> Record:
        return Record(level, words + end, arguments + more, fields | {"job_outcome": outcome} | others)

    match event:
        case worker_events.JobStarted():
            return record(logging.DEBUG, "started", outcome="started")
        case worker_events.JobCompleted():
            seconds = event.ran.total_seconds()
            return record(logging.INFO, "completed in %.3f s", seconds, outcome="completed", ran_seconds=seconds)
        case worker_events.JobRescheduled():
            delay, outcome = event.delay.total_seconds(), event.outcome.value
            level = logging.INFO if event.outcome in _EXPECTED else logging.WARNING
            ended = outcome.replace("_", " ")
            when, due = ("at %s", event.at.isoformat()) if event.at else ("in %.1f s", delay)
            more: dict[str, Any] = {"due_at": due} if event.at else {"delay_seconds": delay}
            if event.error is None:
                return record(level, f"%s, due again {when}", ended, due, outcome=outcome, **more)
            kind, line = _kind(event.error), _line(event)
            more["error_type"] = kind
            written = record(level, f"%s, due again {when}: %s", ended, due, line, outcome=outcome, **more)
            return replace(written, traceback=_traceback(event))
        case worker_events.StepCompleted():
            more = {"step": event.name, "step_key": event.key, "step_kind": event.kind.value}
            line = "completed step %r in %.3f s"
            return record(logging.DEBUG, line, event.name, event.ran.total_seconds(), outcome="step", **more)
        case worker_events.JobUnblocked():
            return record(logging.DEBUG, "was unblocked", outcome="unblocked")
        case worker_events.JobDied():
            more = {"dead_reason": event.reason.value, "error_type": _kind(event.error)}
            ended = event.reason.value.replace("_", " ")
            written = record(logging.ERROR, "died (%s): %s", ended, _line(event), outcome="dead", **more)
            return replace(written, traceback=_traceback(event))
        case worker_events.JobCancelled():
            return record(logging.INFO, "was cancelled by its handler", outcome="cancelled")
        case worker_events.MiddlewareFailed():
            end = "completed, but its middleware failed afterwards: %s"
            hidden = is_redacted(event.type_name)
            line, kind = _kind(event.error) if hidden else error_line(event.error), _kind(event.error)
            written = record(logging.ERROR, end, line, outcome="completed", error_type=kind)
            return written if hidden or isinstance(event.error, DBAPIError) else replace(written, exception=event.error)
        case worker_events.AttemptLost():
            return record(logging.WARNING, "lost its lease; no result was written", outcome="lost")
        case worker_events.JobRescued(died=True):
            end = "was rescued from worker %s and died: it was the last attempt"
            return record(logging.ERROR, end, event.worker_id, outcome="lost", worker_id=event.worker_id)
        case worker_events.JobRescued():
            end = "was rescued from worker %s, which died or exceeded its lease"
            return record(logging.WARNING, end, event.worker_id, outcome="lost", worker_id=event.worker_id)
    return record(logging.DEBUG, "%s", type(event).__name__, outcome="unknown")


def _listed(value: Any) -> Any:
    return (", ".join(value) or "none") if isinstance(value, list) else value


_EXPECTED: Final = frozenset({AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED})


def _line(event: worker_events.JobRescheduled | worker_events.JobDied) -> str:
    return error_line(redacted_error(event.type_name, event.error))


def _traceback(event: worker_events.JobRescheduled | worker_events.JobDied) -> str:
    return _QUOTED.sub("", _stored(redacted_error(event.type_name, event.error), "traceback")).rstrip()


def error_line(error: Any) -> str:
    """Return an error, raised or stored, on one line: its type and the first line of its message."""
    if isinstance(error, StatementError) and error.orig is not None:
        error = error.orig
    message = message_of(error) if isinstance(error, BaseException) else _stored(error, "message")
    first = next(iter(message.strip().splitlines()), "")[:MAX_ERROR]
    return f"{_kind(error)}: {first}" if first else _kind(error)


def _kind(error: Any) -> str:
    if isinstance(error, BaseException):
        return type(error).__name__
    return _stored(error, "type") or "no error"


def _stored(error: Any, key: str) -> str:
    return str(error.get(key) or "") if isinstance(error, dict) else ""
