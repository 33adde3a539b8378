"""The statements that enqueue many at most once, in the shape of `cases`."""

from __future__ import annotations

from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import deduplication, jobs
from tests.statements.shapes import PK, Case

_COLUMNS = ("id", "type_name", "chain_id", "chain_type_name", "input", "deduplication_key")
_NO_ROWS: dict[str, Any] = {name: [] for name in (*_COLUMNS, "delays", "ats")}
_REPLACED = ("deduplication_key", "input", "input_version", "priority", "delays", "ats")

DEDUPLICATION_CASES = [
    Case(
        "enqueue_unless_taken",
        lambda: jobs.unless_taken(Job, jobs.enqueue_many(Job, _COLUMNS)),
        frozenset(),
        lambda w: _NO_ROWS,
        guarded=False,
    ),
    Case(
        "replace",
        lambda: deduplication.replace(Job, ("input", "priority", "schedule")),
        PK,
        lambda w: {"ids": list(w.pending[:100]), "max_wait": None} | {f"next_{name}": [None] * 100 for name in _REPLACED},
        guarded=False,
    ),
]
