"""The statements that enqueue many at most once, in the shape of `cases`."""

from __future__ import annotations

from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import deduplication
from tests.statements.shapes import Case

_COLUMNS = ("id", "type_name", "chain_id", "chain_type_name", "input", "deduplication_key")
_KEYS: dict[str, Any] = {"type_names": ["test", "test"], "keys": ["k1", "k2"]}
_NO_ROWS: dict[str, Any] = {name: [] for name in (*_COLUMNS, "delays", "ats")}

DEDUPLICATION_CASES = [
    Case(
        "put_unique",
        lambda: deduplication.put(Job, _COLUMNS, (), ended=False),
        frozenset(),
        lambda w: _NO_ROWS,
        guarded=False,
    ),
    Case(
        "put_unique_replacing",
        lambda: deduplication.put(Job, _COLUMNS, ("input", "priority", "schedule"), ended=True),
        frozenset(),
        lambda w: _NO_ROWS | {"window": None, "max_wait": None},
        guarded=False,
    ),
]
