"""Redaction of payloads, for the job types named in an environment variable.

It is an environment variable because the process that shows a queue (an operator's shell, a worker's log, a trace
exporter) is often not the one that declares its types. The database is not changed: only output is redacted.
Errors are redacted too, because their messages can quote payloads; their class is kept.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

VARIABLE: Final = "SA_JOBQUEUE_REDACT"
"""Names of job types, separated by commas, with the wildcards `*` and `?`; `*` alone means all."""
REDACTED: Final = "(redacted)"
PAYLOADS: Final = frozenset({"input", "output"})
"""Columns with payloads."""
ERRORS: Final = frozenset({"error", "last_error"})


def is_redacted(type_name: str | None) -> bool:
    """Return whether payloads of a job type are redacted; None, an unknown type, only if all types are."""
    patterns = os.environ.get(VARIABLE)
    return bool(patterns) and _matches(patterns or "", type_name or "")


def is_redacting() -> bool:
    """Return whether payloads of any job type are redacted."""
    return bool(patterns_in(os.environ.get(VARIABLE, "")))


def patterns_in(text: str) -> list[str]:
    """Return the patterns in the variable's text."""
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def redacted(type_name: str | None, value: Any) -> Any:
    """Return a payload of a job type, or the placeholder if it is redacted; None stays None."""
    return REDACTED if value is not None and is_redacted(type_name) else value


def redacted_error(type_name: str | None, error: Any) -> Any:
    """Return a stored error of a job type; if it is redacted, only its class and trace context."""
    if error is None or not is_redacted(type_name):
        return error
    public_fields = (
        {name: error[name] for name in ("type", "trace_context") if name in error} if isinstance(error, dict) else {}
    )
    return public_fields | {"message": REDACTED}


def error_line(error: Any) -> str:
    """Return a stored error, already redacted, on one line of at most 200 characters; empty for None."""
    if not isinstance(error, dict):
        return ""
    message = next(iter(str(error.get("message") or "").strip().splitlines()), "")
    wrapped = _DRIVER_ERROR.match(message) if str(error.get("type") or "").startswith("sqlalchemy.exc.") else None
    return f"{error_name(error) or 'error'}: {message[wrapped.end() :] if wrapped else message}"[:200]


_DRIVER_ERROR: Final = re.compile(r"\((?:[\w]+\.)*(\w+)\) (?:<class '(?:[\w]+\.)*(\w+)'>: )?")
"""How the message of an SQLAlchemy error names that of the driver."""


def error_name(error: dict[str, Any]) -> str:
    """Return the class of a stored error: of one that SQLAlchemy wrapped, that of the driver, such as DeadlockDetected."""
    name = str(error.get("type") or "")
    if name.startswith("sqlalchemy.exc.") and (wrapped := _DRIVER_ERROR.match(str(error.get("message") or ""))):
        return wrapped[2] or wrapped[1]
    return name


@lru_cache(1000)
def _matches(patterns: str, type_name: str) -> bool:
    return any(fnmatchcase(type_name, pattern) for pattern in patterns_in(patterns))
