"""The statements about schedules, in the shape of `cases`."""

from __future__ import annotations

from sa_jobqueue import Job
from sa_jobqueue.statements import schedules
from tests.statements.shapes import PK, Case

SCHEDULE_CASES = [
    Case("schedules_due", lambda: schedules.due(Job), PK, lambda world: {"limit": 50, "at": None}),
    Case("schedules_next_due", lambda: schedules.next_due(Job), frozenset()),
    Case("schedules_made_already", lambda: schedules.made_already(Job), PK, lambda world: {"ids": world.running[:10]}),
    Case("schedules_move", lambda: schedules.move(Job), frozenset(), guarded=False),
    Case("schedules_put", lambda: schedules.put(Job), frozenset(), guarded=False),
    Case("schedules_page", lambda: schedules.page(Job), frozenset(), guarded=False),
    Case("schedules_lock", lambda: schedules.lock(Job), frozenset(), guarded=False),
    Case("schedules_pause", lambda: schedules.pause(Job), frozenset(), guarded=False),
    Case("schedules_resume", lambda: schedules.resume(Job), frozenset(), guarded=False),
    Case("schedules_drop", lambda: schedules.drop(Job), frozenset(), guarded=False),
    Case("schedules_declared_elsewhere", lambda: schedules.declared_elsewhere(Job), frozenset(), guarded=False),
]
