"""The statements of maintenance, in the shape of `cases`; those that cannot be prepared are in
`tests/unit/test_maintenance.py`."""

from __future__ import annotations

from sa_jobqueue.statements import maintenance
from tests.statements.shapes import Case

UPKEEP_CASES = [
    Case("maintenance_bounded", lambda: maintenance.bounded(lock_timeout_ms=10_000), frozenset(), guarded=False),
    Case("maintenance_progress", maintenance.progress, frozenset(), lambda world: {"pid": 1}, guarded=False),
]
