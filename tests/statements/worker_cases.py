"""The statements about workers, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.operations import WorkerFilter
from sa_jobqueue.statements import controls, corrections, quarantine, ticks, workers
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import Case

_WHERE = workers.matching(Job, WorkerFilter(ids=["a"], names=["spark_1-*"], queues=["default"]))
_REFUSED: dict[str, Any] = {"subject": "a", "statement": "complete", "sqlstate": "23514", "error": "no", "worker_id": WORKER}
_REFUSED |= {"pause": timedelta(seconds=2)}
_TICK: dict[str, Any] = {
    **{"id": WORKER, "worker_id": WORKER, "name": "tester", "host": "here", "pid": 1, "version": "0"},
    **{"queues": ["default"], "job_types": ["test"], "types": ["test"], "concurrency": 10, "state": "running"},
    **{"ttl": timedelta(seconds=15), "xmax": "1", "xip": [], "thoroughly": True, "after": timedelta(seconds=15)},
    **{"gone_after": timedelta(minutes=6), "forgotten_after": timedelta(minutes=10)},
}

WORKER_CASES = [
    Case(
        "tick",
        lambda: ticks.tick(Job),
        frozenset(
            {
                "ix_job_running",
                "ix_job_expiring",
                "ix_job_has_waiters",
                "ix_job_changed",
                "ix_job_ordering_freed",
                "ix_job_ordering",
                "ix_job_claim",
            }
        ),
        lambda world: _TICK,
        examines=12_000,  # every running job three times, and the oldest due jobs of its queues
    ),
    Case(
        "list_workers",
        lambda: workers.page(Job, *_WHERE, after=("a", "b"), limit=50),
        frozenset({"ix_job_running"}),
        examines=2000,  # every running job, to count it
    ),
    Case(
        "settings_of_worker",
        lambda: controls.of_worker(Job),
        frozenset(),
        lambda world: {"queues": ["default"], "types": ["test"], "worker_id": WORKER},
    ),
    Case(
        "types_of_later",
        lambda: workers.types_of_later(Job),
        frozenset(),
        lambda world: {"worker_id": WORKER, "types": ["test"], "ttl": timedelta(seconds=15)},
    ),
    Case(
        "earlier",
        lambda: workers.earlier(Job),
        frozenset(),
        lambda world: {"worker_id": WORKER, "types": ["test"], "ttl": timedelta(seconds=15)},
    ),
    Case(
        "correct_heartbeats", lambda: corrections.correct_heartbeats(Job), frozenset(), lambda world: {"after": timedelta(0)}
    ),
    Case(
        "correct_leases",
        lambda: corrections.correct_leases(Job),
        frozenset({"ix_job_running", "pk_job"}),
        lambda world: {"after": timedelta(minutes=1), "limit": 100},
        examines=2000,  # every running job
    ),
    Case(
        "correct_transactions",
        lambda: corrections.correct_transactions(Job),
        frozenset({"ix_job_changed", "pk_job"}),
        lambda world: {"limit": 100},
    ),
    Case("quarantine_put", lambda: quarantine.put(Job), frozenset(), lambda world: _REFUSED),
    Case(
        "quarantine_drop",
        lambda: quarantine.drop(Job),
        frozenset(),
        lambda world: {"statement": "complete", "subjects": ["a", "b"]},
    ),
    Case(
        "quarantine_forget",
        lambda: quarantine.forget(Job),
        frozenset(),
        lambda world: {"forgotten_after": timedelta(minutes=10)},
    ),
    Case("quarantine_page", lambda: quarantine.page(Job), frozenset(), lambda world: {"subjects": ["a"], "limit": 100}),
    Case("notify_rules", lambda: controls.notify_rules(Job), frozenset()),
]
