"""The statements about workers, in the shape of `cases`."""

from __future__ import annotations

from sa_jobqueue import Job
from sa_jobqueue.statements import controls, workers
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import Case

_WHERE = workers.matching(Job, ids=["a"], names=["spark_1-*"], queues=["default"])

WORKER_CASES = [
    Case(
        "list_workers",
        lambda: workers.page(Job, *_WHERE, limit=50),
        frozenset({"ix_job_running"}),
        looks_at=2000,  # every running job, to count it
    ),
    Case("request_drain", lambda: workers.request_drain(Job, *_WHERE), frozenset(), guarded=False),
    Case(
        "controls_of_worker",
        lambda: controls.of_worker(Job),
        frozenset(),
        lambda world: {"queues": ["default"], "types": ["test"], "worker_id": WORKER},
    ),
    Case("notify_rules", lambda: controls.notify_rules(Job), frozenset()),
]
