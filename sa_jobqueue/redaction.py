"""Whose payloads are not to be shown: of the job types that the process's environment names.

In the environment, because who looks at a queue (an operator's shell, a worker's log, an exporter of traces) is another
process than who declares its types, and has no code of theirs. What is in the database is not touched: this is about
where it is shown. Errors count as payloads, for their messages quote them; their class stays.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

VARIABLE: Final = "SA_JOBQUEUE_REDACT"
"""Names of job types, separated by commas; `*` and `?` stand for others, so `*` alone means all."""
REDACTED: Final = "(redacted)"
PAYLOADS: Final = frozenset({"input", "output"})
"""Columns that hold them."""
ERRORS: Final = frozenset({"error", "last_error"})


def is_redacted(type_name: str | None) -> bool:
    """Return whether payloads of a job type are not to be shown; of None, an unknown type, only where all are not."""
    patterns = os.environ.get(VARIABLE)
    return bool(patterns) and _matches(patterns or "", type_name or "")


def is_redacting() -> bool:
    """Return whether payloads of any job type are not to be shown."""
    return bool(patterns_in(os.environ.get(VARIABLE, "")))


def patterns_in(text: str) -> list[str]:
    """Return the patterns that a text names, as the variable has it."""
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def redacted(type_name: str | None, value: Any) -> Any:
    """Return a payload of a job type, or what stands for it; None stays None."""
    return REDACTED if value is not None and is_redacted(type_name) else value


def redacted_error(type_name: str | None, error: Any) -> Any:
    """Return a stored error of a job type; of one that is not to be shown, its class and where its trace is."""
    if error is None or not is_redacted(type_name):
        return error
    kept = {name: error[name] for name in ("type", "trace_context") if name in error} if isinstance(error, dict) else {}
    return kept | {"message": REDACTED}


@lru_cache(1000)
def _matches(patterns: str, type_name: str) -> bool:
    return any(fnmatchcase(type_name, pattern) for pattern in patterns_in(patterns))
