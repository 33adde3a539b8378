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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Final

from sqlalchemy.exc import StatementError

from sa_jobqueue import events
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
_FREQUENT: Final = (events.JobStarted, events.JobUnblocked, events.StepCompleted, events.JobCompleted)
"""Events of every job: not even created while their level is off."""
_QUOTED: Final = re.compile(r"^(\[parameters: |DETAIL: ).*\n?", re.MULTILINE)
"""Lines of a driver's error that quote values, which may be payloads."""


_WORDS: Final[Mapping[int, Mapping[type, str]]] = {
    logging.DEBUG: {
        events.JobStarted: "started",
        events.StepCompleted: "completed step %(step)r in %(ran_seconds).3f s",
        events.JobUnblocked: "was unblocked",
    },
    logging.INFO: {
        events.JobCompleted: "completed in %(ran_seconds).3f s",
        events.JobCancelled: "was cancelled by its handler",
        events.WorkerStarted: "worker %(worker_id)s started queues=%(queues)s concurrency=%(concurrency)d "
        "handlers=%(handlers)s database=%(database)s schema_version=%(schema_version)d max_connections=%(max_connections)d",
        events.SettingsChanged: "settings changed worker=%(worker_id)s concurrency=%(concurrency)d "
        "paused_queues=%(paused_queues)s paused_types=%(paused_types)s",
        events.PoolerFound: "worker %(worker_id)s is connected through a connection pooler; %(how)s",
        events.DrainRequested: "worker %(worker_id)s is draining: running jobs may finish",
        events.WorkerStopped: "worker %(worker_id)s stopped, jobs released: %(released)d",
        events.ChainsPruned: "pruned %(chains)d chains with %(jobs)d jobs, and %(dead_letters)d resolved dead letters, "
        "after their retention",
        events.ChainsReferenced: "kept %(chains)d chains after their retention, such as %(chain_id)s, because rows of the "
        "application refer to them by %(constraint)s: %(error)s",
        events.ScheduleFired: "schedule %(schedule)s fired for %(times)s",
    },
    logging.WARNING: {
        events.JobRescheduled: "%(ended)s, due again %(due)s",
        events.AttemptLost: "lost its lease; no result was written",
        events.JobRescued: "was rescued from worker %(worker_id)s, which died or exceeded its lease",
        events.SettingsDiffer: "settings of queues differ from those declared in the code, and the database's apply until "
        "`sa-jobqueue queues sync MODULE:ATTRIBUTE` writes the declared ones: %(lines)s",
        events.SchedulesChanged: "worker %(worker_id)s replaced the definition of schedules: %(lines)s",
        events.SchedulesDiffer: "schedules have other definitions than worker %(worker_id)s declares; those in the database "
        "apply until a worker with this code starts, or `sa-jobqueue schedules sync` writes the declared ones: %(lines)s",
        events.JobTypesDiffer: "job types are recorded as a worker declares them that started later, and not as "
        "this code does; jobs that SQL or other programs enqueue take the recorded values: %(lines)s",
        events.RowsHidden: "worker %(worker_id)s may not see all rows, because row-level security on %(tables)s may hide "
        "some from role %(role)s; give it BYPASSRLS, or a policy with USING (true) WITH CHECK (true)",
        events.SchemaAhead: "worker %(worker_id)s found schema version %(schema_version)d, newer than its own "
        "(%(known_version)d); upgrade the worker",
        events.MemoryExceeded: "worker %(worker_id)s uses %(resident).0f MiB, more than its limit of %(limit).0f MiB; "
        "it drains and stops",
        events.UnknownTypesPending: "due jobs stay pending, as no worker has a handler for their types: %(job_types)s",
        events.UnservedQueues: "due jobs stay pending, as no worker serves their queues: %(queues)s",
        events.SchedulesUndeclared: "schedules are not declared in this code but still fire; delete them if they are "
        "obsolete: %(schedules)s",
    },
    logging.ERROR: {
        events.JobDied: "died (%(ended)s): %(error)s",
        events.MiddlewareFailed: "completed, but its middleware failed afterwards: %(error)s",
        events.HeartbeatFailing: "worker %(worker_id)s had no successful heartbeat for %(silent_seconds).1f s; "
        "it stops its jobs before other workers rescue them",
        events.ScheduleBroken: "schedule %(schedule)s cannot fire until its row is corrected: %(reason)s",
        events.ProviderFailed: "dependency could not be closed: %(error)s",
        events.SelectorFailed: "selector %(selector)s failed; jobs of queue %(queue)s start in the default order "
        "until it succeeds: %(error)s",
        events.WriteQuarantined: "write quarantined statement=%(statement)s subject=%(subject)s failures=%(failures)d "
        "retry_in=%(delay_seconds).0fs: %(error)s",
        events.ComponentFailed: "%(component)s failed, restarting in %(delay_seconds).1f s: %(error)s",
    },
}
"""Words of each event, by level; those of an attempt follow `_OF_ATTEMPT`."""
_LINES: Final = {kind: (level, words) for level, words_by_kind in _WORDS.items() for kind, words in words_by_kind.items()}
_OF_ATTEMPT: Final = "job %(job_id)s (%(job_type)s) attempt %(job_attempt)d "
_NAMES: Final = {
    "type_name": "job_type",
    "attempt": "job_attempt",
    "name": "step",
    "key": "step_key",
    "kind": "step_kind",
    "type_names": "job_types",
    "queue_names": "queues",
    "write": "statement",
    "version": "schema_version",
}
"""Fields of records that are not called as those of events."""
_FIELDS: Final = {
    kind: [event_field.name for event_field in fields(kind) if event_field.name not in {"error", "outcome"}]
    for kind in _LINES
}
_OF_ONE_LINE: Final = (events.WriteQuarantined, events.ChainsReferenced)
"""Events whose errors are logged without a traceback."""
_EXPECTED: Final = frozenset({AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED})


@dataclass(frozen=True, slots=True)
class Record:
    """The log record of an event: `message` is formatted with `arguments`, `fields` go to `extra`."""

    level: int
    message: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    exception: BaseException | None = None
    traceback: str = ""
    """Of an error that is known only as it is stored."""
    stack: str = ""
    """Of another thread."""


def subscribe(bus: events.EventBus, logger: logging.Logger | None = None) -> None:
    """Log the events of a worker to `logger`, by default `sa_jobqueue.worker`, where a `Worker` already logs its own.

    If the events are already logged there, nothing changes.
    """
    write = _Writer(logger or logging.getLogger(LOGGER_NAME))
    if bus.is_subscribed(write):
        return
    attempts = write.target.getChild(ATTEMPTS)
    for kind in _FREQUENT:
        bus.subscribe(write, kinds=[kind], condition=partial(attempts.isEnabledFor, _LINES[kind][0]))
    bus.subscribe(write, kinds=[kind for kind in _LINES if kind not in _FREQUENT])


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes events to a logger. Equal if the loggers are."""

    target: logging.Logger

    def __call__(self, event: events.Event) -> None:
        target = self.target.getChild(ATTEMPTS) if isinstance(event, events.AttemptEvent) else self.target
        _write(target, type(event).__name__, describe(event))


def _write(target: logging.Logger, event: str, record: Record) -> None:
    if not target.isEnabledFor(record.level):
        return
    # Escaped for any formatter: a name or an error's message must not start a second line.
    arguments = {name: printable(value) if isinstance(value, str) else value for name, value in record.arguments.items()}
    error = record.exception
    raised = None if error is None else (type(error), error, error.__traceback__)
    log_record = target.makeRecord(
        *(target.name, record.level, __file__, 0, record.message, (arguments,), raised),
        func="describe",
        extra={"event": event} | record.fields,
        sinfo=printable(record.stack, newline="\n") or None,
    )
    if record.traceback:  # the standard formatters append it as they do the text of an exception
        log_record.exc_text = printable(record.traceback, newline="\n")
    target.handle(log_record)


def warn_of_blocked_loop(seconds: float, name: str, job: ClaimedJob | None, handler: str, stack: str) -> None:
    """Log what blocks a worker's event loop. No event: the loop that delivers events is the one that is blocked.

    `name`: the job type, or the name of a task that runs no job. `stack`: of the loop's thread.
    """
    subject = f"task {name}" if job is None else f"job {job.id} ({name}) attempt {job.attempt}"
    subject += f", handler {handler}" if handler else ""
    record_fields: dict[str, Any] = {"blocked_seconds": round(seconds, 1), "task": name, "handler": handler}
    if job is not None:
        record_fields |= {"job_id": str(job.id), "job_type": name, "job_attempt": job.attempt}
    words = (
        "event loop blocked for over %(seconds).1f s by %(subject)s; the worker's other async jobs wait: declare the "
        "handler with def instead of async def, or call what blocks with asyncio.to_thread"
    )
    stack = f"Stack (most recent call last):\n{stack.rstrip()}"
    record = Record(logging.WARNING, words, {"seconds": seconds, "subject": subject}, record_fields, stack=stack)
    _write(logging.getLogger(LOGGER_NAME), "EventLoopBlocked", record)


def describe(event: events.Event) -> Record:
    """Return the log record of an event: its own fields, and the words of `_LINES` for them. Pure."""
    level, words = _LINES[type(event)]
    record_fields = dict(_field(name, getattr(event, name)) for name in _FIELDS[type(event)])
    arguments: dict[str, Any] = {}
    if isinstance(event, events.AttemptEvent):
        words = _OF_ATTEMPT + words
        record_fields["job_outcome"] = str(event.outcome)  # type: ignore[attr-defined]
    match event:
        case events.JobRescheduled():
            level = logging.INFO if event.outcome in _EXPECTED else level
            arguments["ended"] = event.outcome.value.replace("_", " ")
            arguments["due"] = f"at {event.at.isoformat()}" if event.at else f"in {event.delay.total_seconds():.1f} s"
            words += "" if event.error is None else ": %(error)s"
        case events.JobDied():
            arguments["ended"] = event.reason.value.replace("_", " ")
        case events.JobRescued(died=True):
            level = logging.ERROR
            words = words.replace(", which died or exceeded its lease", " and died: it was the last attempt")
        case events.SettingsDiffer() | events.JobTypesDiffer() | events.SchedulesChanged() | events.SchedulesDiffer():
            lines = [
                f"{queue} {setting}={stored} (declared: {now})"
                for queue, columns in event.differences.items()
                for setting, (stored, now) in columns.items()
            ]
            arguments["lines"] = "; ".join(lines)
        case events.PoolerFound():
            polls = f"it polls every {event.poll_interval.total_seconds():g} s"
            arguments["how"] = "it listens on a separate connection" if event.listens else polls
        case events.MemoryExceeded():
            arguments |= {"resident": event.resident_bytes / 2**20, "limit": event.limit_bytes / 2**20}
        case events.ScheduleFired():
            arguments["times"] = ", ".join(record_fields["fire_times"]) or "no time"
            if event.missed_since is not None:
                level, words = logging.WARNING, f"{words}; times from %(missed_since)s on were skipped"
    arguments |= {name: ", ".join(value) or "none" for name, value in record_fields.items() if isinstance(value, list)}
    record = Record(level, words, record_fields | arguments, record_fields)
    return _with_error(record, event, event.error) if hasattr(event, "error") else record


def _with_error(record: Record, event: Any, error: Any) -> Record:
    """Add an error: as a line, its type, and its traceback, without values of a statement, which may be payloads."""
    exception, traceback = None, ""
    if isinstance(error, BaseException):
        hidden = is_redacted(getattr(event, "type_name", None))
        line = _kind(error) if hidden else error_line(error)
        is_plain = isinstance(event, events.SelectorFailed) and isinstance(error, (JobQueueError, TimeoutError))
        if not (hidden or is_plain or isinstance(error, StatementError) or isinstance(event, _OF_ONE_LINE)):
            exception = error
    else:
        redacted = redacted_error(event.type_name, error)
        line, traceback = error_line(redacted), _QUOTED.sub("", _stored(redacted, "traceback")).rstrip()
    record_fields = record.fields | ({} if error is None else {"error_type": _kind(error)})
    arguments = {**record.arguments, "error": line}
    return replace(record, arguments=arguments, fields=record_fields, exception=exception, traceback=traceback)


def _field(name: str, value: Any) -> tuple[str, Any]:
    """Return a field of an event as one of a record, of types that JSON has."""
    name = _NAMES.get(name, name)
    match value:
        case None | int() | float():
            return name, value
        case timedelta():
            return f"{name}_seconds", value.total_seconds()
        case datetime():
            return name, value.isoformat()
        case Enum():
            return name, value.value
        case tuple():
            return name, [_field("", element)[1] for element in value]
        case Mapping():
            return name, {key: _field("", element)[1] for key, element in value.items()}
    return name, str(value)


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
