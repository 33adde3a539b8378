"""The statements about schedules, in the shape of `cases`."""

from __future__ import annotations

from datetime import UTC, datetime

from sa_jobqueue import Job
from sa_jobqueue.statements import schedules
from tests.statements.shapes import PK, Case

SCHEDULE_CASES = [
    Case("schedules_due", lambda: schedules.due(Job), PK, lambda world: {"limit": 50, "at": None}),
    Case("schedules_due_names", lambda: schedules.due_names(Job), frozenset(), lambda world: {"limit": 50}),
    Case("schedules_next_due", lambda: schedules.next_due(Job), frozenset()),
    Case(
        "schedules_fired_already",
        lambda: schedules.fired_already(Job),
        PK,
        lambda world: {
            "ids": world.running[:10],
            "names": ["nightly"] * 10,
            "times": [datetime(2026, 5, 1, tzinfo=UTC)] * 10,
        },
    ),
]
