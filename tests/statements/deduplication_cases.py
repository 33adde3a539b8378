"""The statements that enqueue many at most once, in the shape of `cases`."""

from __future__ import annotations

from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import deduplication
from tests.statements.shapes import NOBODY, Case

_COLUMNS = ("id", "type_name", "chain_id", "chain_type_name", "input", "deduplication_key")
_KEYS: dict[str, Any] = {"type_names": ["test", "test"], "keys": ["k1", "k2"]}
_NO_ROWS: dict[str, Any] = {name: [] for name in (*_COLUMNS, "delays", "ats")}
_OPEN, _ANY = "uq_job_deduplication", "ix_job_deduplication"

DEDUPLICATION_CASES = [
    Case("lock_keys", deduplication.lock_keys, frozenset(), lambda w: {"names": ["k1", "k2"]}, guarded=False),
    Case(
        "replace",
        lambda: deduplication.replace(
            Job, NOBODY, "k", new=Job("test", 1), replaced=["input", "schedule", "priority"], max_wait=None
        ),
        frozenset(),
        guarded=False,
    ),
    Case(
        "give_up_begun", lambda: deduplication.give_up_begun(Job), frozenset({_OPEN, _ANY}), lambda w: _KEYS, guarded=False
    ),
    Case(
        "put_unique",
        lambda: deduplication.put(Job, _COLUMNS, (), ended=False),
        frozenset(),
        lambda w: _NO_ROWS,
        guarded=False,
    ),
    Case(
        "put_unique_holding",
        lambda: deduplication.put(Job, _COLUMNS, (), ended=False, held=True),
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
    Case(
        "holders", lambda: deduplication.holders(Job, ended=False), frozenset({_OPEN, _ANY}), lambda w: _KEYS, guarded=False
    ),
    Case(
        "holders_ended",
        lambda: deduplication.holders(Job, ended=True),
        frozenset({_ANY}),
        lambda w: _KEYS | {"window": None},
        guarded=False,
    ),
]
