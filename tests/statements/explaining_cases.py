"""The statements that explain a job, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta

from sa_jobqueue import Job
from sa_jobqueue.statements import explaining
from tests.statements.shapes import PK, Case

EXPLAINING_CASES = [
    Case(
        "explain_rates",
        lambda: explaining.rates(Job),
        frozenset(),
        lambda world: {"queue": "default", "fairness_keys": ["", "1"], "type_name": "test"},
        guarded=False,
    ),
    Case(
        "explain_holders",
        lambda: explaining.holders(Job),
        frozenset({"ix_job_running"}),
        lambda world: {"queue": "default", "fairness_key": "1", "type_name": None},
        guarded=False,
    ),
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
    Case(
        "explain_locked_by",
        lambda: explaining.locked_by(Job),
        PK,
        lambda world: {"job_id": world.pending[0]},
        guarded=False,
    ),
    Case(
        "explain_ended_lately",
        lambda: explaining.recently_ended(Job),
        frozenset(),
        lambda world: {
            "queue": "default",
            "fairness_key": "",
            "window": timedelta(minutes=1),
            "transactions": 10,
            "limit": 100,
        },
        guarded=False,
    ),
    Case(
        "explain_waited_for",
        lambda: explaining.waited_for(Job),
        PK | {"uq_job_chain", "pk_job_blocker"},
        lambda world: {"job_id": world.pending[0], "limit": 20},
        guarded=False,
    ),
    Case(
        "explain_before_in_order",
        lambda: explaining.before_in_order(Job),
        frozenset({"pk_job", "ix_job_ordering", "uq_job_ordering"}),
        lambda world: {"ordering_key": "none"},
        guarded=False,
    ),
]
