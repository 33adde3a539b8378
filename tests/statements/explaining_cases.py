"""The statements that explain a job, in the shape of `cases`."""

from __future__ import annotations

from sa_jobqueue import Job
from sa_jobqueue.statements import explaining
from tests.statements.shapes import Case

EXPLAINING_CASES = [
    Case(
        "explain_ahead",
        lambda: explaining.ahead(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {
            "queue": "default",
            "fairness_key": "",
            "priority": 0,
            "scheduled_at": world.now,
            "id": world.pending[0],
            "limit": 500,
        },
        examines=1000,
    ),
]
