"""Log lines that say which attempt they belong to, as text or as JSON, and the last of them kept with an attempt's error.

Whatever a handler logs, through any logger, gets the fields that a worker's own records have: `job_id`, `job_attempt` and
`job_type`. A formatter that writes `extra` shows them, so one query finds all that was said of a job.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from sa_jobqueue.context import AttemptContext, current_attempt
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.printable import printable
from sa_jobqueue.redaction import is_redacted

TEXT: Final = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(attempt)s%(message)s"
MOST_LINES: Final = 1000
MOST_CHARACTERS: Final = 500
"""Kept of one captured line."""

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "attempt"}


class AttemptFilter(logging.Filter):
    """Adds to each record the attempt that it was written in: `job_id`, `job_attempt`, `job_type`, and `attempt` for text.

    Belongs on a handler, for the filters of a logger are not asked about the records of its children. Lets all pass. What
    a record says of a job already, it keeps.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields."""
        attempt = current_attempt()
        if attempt is not None and not hasattr(record, "job_id"):
            job = attempt.job
            record.job_id, record.job_attempt, record.job_type = str(job.id), job.attempt, job.type_name
        fields = record.__dict__
        of_handler = "job_id" in fields and "event" not in fields  # an event names its job in its own words
        record.attempt = "job {job_id} attempt {job_attempt}: ".format_map(_Named(fields)) if of_handler else ""
        return True


class _Named(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def bind(handler: logging.Handler) -> None:
    """Let a handler of the application's own logging configuration see the fields; twice is as once."""
    if not any(isinstance(one, AttemptFilter) for one in handler.filters):
        handler.addFilter(AttemptFilter())


class TextFormatter(logging.Formatter):
    """Writes a record as one line of text, by default as `TEXT`; a traceback follows on indented lines.

    What would steer a terminal, or make one record look like two, is escaped as by `printable`.
    """

    def __init__(self, fmt: str = TEXT) -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and those of the traceback."""
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self.formatMessage(record))]
        if record.exc_info and record.exc_info[0] is not None:
            lines.append(_indented(self.formatException(record.exc_info)))
        elif record.exc_text:
            lines.append(_indented(record.exc_text))
        if record.stack_info:
            lines.append(_indented(self.formatStack(record.stack_info)))
        return "\n".join(lines)


def _indented(text: str) -> str:
    return "  " + printable(text, newline="\n  ")


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `process`, its fields.

    `exception` is the traceback, where there is one. A value that JSON has no form for is shown as text.
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
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line, default=str)


class LogCapture(logging.Handler):
    """Keeps the last `lines` lines that each attempt logs, to be stored with its error as `log`, should it fail.

    Put on the root logger by `capture`. Lines of an attempt that completes, or is snoozed, are forgotten: no row is
    written for them. A line is kept up to `MOST_CHARACTERS`. In memory, so a process that dies takes them with it.
    """

    def __init__(self, lines: int, level: int) -> None:
        super().__init__(level)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of the attempt that is the current one, unless its type is not to be shown; others are nobody's."""
        attempt = current_attempt()
        if attempt is None or "event" in record.__dict__ or is_redacted(attempt.job.type_name):
            return
        try:
            self._keep(attempt, record)
        except Exception:  # what a handler gives to its logger is user code, down to its `__str__`
            self.handleError(record)

    def _keep(self, attempt: AttemptContext, record: logging.LogRecord) -> None:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = f"{when} {record.levelname} {record.name}: {record.getMessage()}"[:MOST_CHARACTERS]
        # A new list: the one before may be on its way into the database while a thread of the handler goes on.
        kept = attempt.notes.get("log", [])[1 - self._lines :] if self._lines > 1 else []
        attempt.notes["log"] = [*kept, line.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()]


def capture(lines: int, *, level: int = logging.INFO) -> LogCapture:
    """Keep the last `lines` (1 to `MOST_LINES`) log lines of each attempt, of `level` and above, from now on; return how.

    For this process; `logging.getLogger().removeHandler` of what is returned ends it. A failed attempt's error has them
    under `log`, in `job_attempt`, in the job's `last_error` and in its dead letter: whoever may read those reads them.
    Raises: InvalidOptionError.
    """
    if not 1 <= lines <= MOST_LINES:
        raise InvalidOptionError("lines", f"must be from 1 to {MOST_LINES:,}, got {lines}")
    handler = LogCapture(lines, level)
    logging.getLogger().addHandler(handler)
    return handler
