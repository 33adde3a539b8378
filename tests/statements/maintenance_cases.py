"""The statements of upkeep, in the shape of `cases`; those that cannot be prepared are in `tests/unit/test_upkeep.py`."""

from __future__ import annotations

from sa_jobqueue.statements import upkeep
from tests.statements.shapes import Case

UPKEEP_CASES = [
    Case("upkeep_bounded", lambda: upkeep.bounded(lock_timeout_ms=10_000), frozenset(), guarded=False),
    Case("upkeep_progress", upkeep.progress, frozenset(), lambda world: {"pid": 1}, guarded=False),
]
