"""The statements about schedules, in the shape of `cases`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sa_jobqueue import Job
from sa_jobqueue.statements import schedules
from tests.statements.shapes import PK, Case

_NIGHTLY = dict.fromkeys(schedules.SETTINGS) | {
    "name": "nightly",
    "cron": "@daily",
    "time_zone": "UTC",
    "type_name": "test",
    "queue": "default",
    "fairness_key": "",
    "priority": 0,
    "max_attempts": 20,
    "input_version": 1,
    "misfire_policy": "one",
    "catch_up": 100,
    "grace": timedelta(minutes=1),
    "overlap": True,
    "source": "table",
    "next_fire_at": None,
}

SCHEDULE_CASES = [
    Case("schedules_due", lambda: schedules.due(Job), PK, lambda world: {"limit": 50, "at": None}),
    Case("schedules_due_names", lambda: schedules.due_names(Job), frozenset(), lambda world: {"limit": 50}),
    Case("schedules_next_due", lambda: schedules.next_due(Job), frozenset()),
    Case("schedules_made_already", lambda: schedules.made_already(Job), PK, lambda world: {"ids": world.running[:10]}),
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
    Case("schedules_record_fired", lambda: schedules.record_fired(Job), frozenset(), guarded=False),
    Case("schedules_move", lambda: schedules.move(Job), frozenset(), guarded=False),
    Case("schedules_put", lambda: schedules.put(Job), frozenset(), lambda world: _NIGHTLY, guarded=False),
    Case("schedules_page", lambda: schedules.page(Job), frozenset(), guarded=False),
    Case("schedules_named", lambda: schedules.named(Job), frozenset(), guarded=False),
    Case("schedules_lock", lambda: schedules.lock(Job), frozenset(), guarded=False),
    Case("schedules_pause", lambda: schedules.pause(Job), frozenset(), guarded=False),
    Case("schedules_resume", lambda: schedules.resume(Job), frozenset(), guarded=False),
    Case("schedules_drop", lambda: schedules.drop(Job), frozenset(), guarded=False),
    Case("schedules_declared_elsewhere", lambda: schedules.declared_elsewhere(Job), frozenset(), guarded=False),
]
