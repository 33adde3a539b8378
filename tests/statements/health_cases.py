"""The statements of a health report, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta

from sa_jobqueue import Job
from sa_jobqueue.statements import dead_letters, health
from tests.statements.shapes import PK, Case

_TTL = {"ttl": timedelta(seconds=15)}
_LANES = 2 * 3


HEALTH_CASES = [
    Case(
        "health_due_groups",
        lambda: health.due_groups(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"queue": "default", "scan": 500, "limit": 5},
        examines=1000,
    ),
    Case(
        "health_depths",
        lambda: health.depths(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"limit": 100},
        examines=_LANES * 2 * 100,
    ),
    Case(
        "health_due_lanes",
        lambda: health.due_lanes(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"limit": 100},
        examines=_LANES * 2 * 100,
    ),
    Case(
        "health_running",
        lambda: health.running(Job),
        frozenset({"ix_job_running"}),
        lambda world: _TTL,
        examines=2000,  # every running job
    ),
    Case("health_unresolved", lambda: health.unresolved(Job), frozenset(), lambda world: {"limit": 100}, examines=100),
    Case(
        "dead_letters_groups",
        lambda: dead_letters.groups(Job, Job.DeadLetter.resolution.is_(None), scan=100, limit=10),
        frozenset(),
        lambda world: {},
        examines=200,
    ),
    Case(
        "health_behind_dead",
        lambda: health.behind_dead(Job),
        PK,
        lambda world: {"limit": 100},
        examines=200,
    ),
    Case(
        "health_behind_cancelled",
        lambda: health.behind_cancelled(Job),
        PK | {"ix_job_blocked_or_dead"},
        lambda world: {"limit": 100},
        examines=400,
    ),
    Case(
        "health_chains_to_unblock",
        lambda: health.chains_to_unblock(Job),
        frozenset({"ix_job_has_waiters"}),
        lambda world: {"limit": 100},
    ),
]
