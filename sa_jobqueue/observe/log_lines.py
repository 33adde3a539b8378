"""Log lines with the attempt that they belong to, as text or JSON, and capture of an attempt's last lines.

Records that a handler logs, through any logger, get the fields of a worker's own records: `job_id`, `job_attempt` and
`job_type`. A formatter that writes `extra` includes them, so one query finds all log lines of a job.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from sa_jobqueue.context import AttemptContext, current_attempt
from sa_jobqueue.display.printable import printable
from sa_jobqueue.display.redaction import is_redacted
from sa_jobqueue.errors import InvalidOptionError

TEXT: Final = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(attempt)s%(message)s"
MOST_LINES: Final = 1000
MOST_CHARACTERS: Final = 500
"""Maximum length of a captured line."""

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "attempt"}


class AttemptFilter(logging.Filter):
    """Adds the current attempt to each record: `job_id`, `job_attempt`, `job_type`, and `attempt` for text.

    Belongs on a handler, as the filters of a logger are not applied to records of its children. Passes every record, and
    keeps job fields that a record already has.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; return True."""
        attempt = current_attempt()
        if attempt is not None and not hasattr(record, "job_id"):
            job = attempt.job
            record.job_id, record.job_attempt, record.job_type = str(job.id), job.attempt, job.type_name
        fields = record.__dict__
        of_handler = "job_id" in fields and "event" not in fields  # the message of an event already names its job
        record.attempt = f"job {fields['job_id']} attempt {fields.get('job_attempt', '?')}: " if of_handler else ""
        return True


def bind(handler: logging.Handler) -> None:
    """Add an `AttemptFilter` to a handler, unless it has one."""
    if not any(isinstance(filter_, AttemptFilter) for filter_ in handler.filters):
        handler.addFilter(AttemptFilter())


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text, by default as `TEXT`, with a traceback on indented lines.

    Control characters and line breaks are escaped as by `printable`.
    """

    def __init__(self, fmt: str = TEXT) -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the lines of the traceback."""
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self.formatMessage(record))]
        if traceback := _traceback(self, record):
            lines.append(_indented(traceback))
        if record.stack_info:
            lines.append(_indented(self.formatStack(record.stack_info)))
        return "\n".join(lines)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    has_error = record.exc_info and record.exc_info[0] is not None
    return formatter.formatException(record.exc_info) if has_error else record.exc_text  # type: ignore[arg-type]


def _indented(text: str) -> str:
    return "  " + printable(text, newline="\n  ")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `process`, its fields.

    `exception` is the traceback, if any. Values without a JSON type are converted to text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        return json.dumps(line, default=str)


class LogCapture(logging.Handler):
    """Keeps the last `lines` lines that each attempt logs, stored as `log` with its error if it fails.

    `capture` adds it to the root logger. Lines of an attempt that completes or is snoozed are dropped. Lines are cut after
    `MOST_CHARACTERS`. They are kept in memory, so they are lost if the process dies.
    """

    def __init__(self, lines: int, level: int) -> None:
        super().__init__(level)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of the current attempt, unless its job type is redacted; ignore lines outside of attempts."""
        attempt = current_attempt()
        if attempt is None or "event" in record.__dict__ or is_redacted(attempt.job.type_name):
            return
        try:
            self._append(attempt, record)
        except Exception:  # formatting the record calls user code, such as `__str__`
            self.handleError(record)

    def _append(self, attempt: AttemptContext, record: logging.LogRecord) -> None:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = f"{when} {record.levelname} {record.name}: {record.getMessage()}"[:MOST_CHARACTERS]
        # A new list: the old one may be being written to the database while a thread of the handler continues.
        previous = attempt.notes.get("log", [])[1 - self._lines :] if self._lines > 1 else []
        attempt.notes["log"] = [*previous, line.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()]


def capture(lines: int, *, level: int = logging.INFO) -> LogCapture:
    """Start to capture the last `lines` (1 to `MOST_LINES`) log lines of each attempt, of `level` and above.

    Applies to this process. Returns the handler; `logging.getLogger().removeHandler` stops the capture. The error of a
    failed attempt has the lines under `log`, in `job_attempt`, the job's `last_error` and its dead letter.
    Raises: InvalidOptionError.
    """
    if not 1 <= lines <= MOST_LINES:
        raise InvalidOptionError("lines", f"must be between 1 and {MOST_LINES:,}, got {lines}")
    handler = LogCapture(lines, level)
    logging.getLogger().addHandler(handler)
    return handler
