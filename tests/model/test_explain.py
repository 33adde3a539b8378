"""Whatever keeps a due job from starting, alone or combined: `explain` names the first cause, by a separate oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, insert

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.operations import Cause, explain_job
from tests.fixtures.database import SWEEP
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write

pytestmark = pytest.mark.slow

WORKERS = ("ready", "busy", "failing", "draining", "silent", "of another queue", "of another type")
COLUMNS: dict[str, dict[str, Any]] = {
    "draining": {"state": "draining"},
    "silent": {"silent_for": 60},
    "failing": {"failure": "claimer: InsufficientPrivilege: permission denied"},
    "of another queue": {"queues": ["mail"]},
    "of another type": {"job_types": ["another"]},
}


@dataclass(frozen=True, kw_only=True)
class World:
    """A pending job, and all that may be true around it."""

    workers: frozenset[str]
    later: bool
    failed_before: bool
    queue_paused: bool
    type_paused: bool
    expired: bool
    turn: str
    """Of its ordering key: "none", "first", "after one that waits", "after one that runs"."""
    limit: str
    """Across workers: "none", "room", "queue full", "type full"."""
    rate: str
    """Across workers: "none", "some left", "used up"."""
    ahead: int
    chosen: bool
    """Whether a function chooses in the queue, in each of its workers."""

    def cause(self) -> Cause:
        """Return the expected cause, the first that applies."""
        live = self.workers - {"silent"}
        serving = live - {"of another queue"}
        able = serving - {"of another type"}
        ready = able - {"draining"}
        free = ready & {"ready", "failing"}
        answers = (
            (self.later, Cause.RETRYING if self.failed_before else Cause.SCHEDULED),
            (self.queue_paused, Cause.QUEUE_PAUSED),
            (self.type_paused, Cause.TYPE_PAUSED),
            (not live, Cause.NO_WORKER),
            (not serving, Cause.QUEUE_UNSERVED),
            (not able, Cause.TYPE_UNKNOWN),
            (not ready, Cause.DRAINING),
            (self.expired, Cause.EXPIRED),
            (self.turn.startswith("after"), Cause.WAITING_FOR_ORDERING_KEY),
            (self.limit.endswith("full"), Cause.LIMITED),
            (self.rate == "used up", Cause.RATE_LIMITED),
            (ready == {"failing"}, Cause.WORKER_FAILING),
            (self.chosen, Cause.NOT_SELECTED if free else Cause.BUSY),
            (self.ahead > 0, Cause.QUEUED),
            (not free, Cause.BUSY),
        )
        return next((cause for holds, cause in answers if holds), Cause.READY)


FLEETS = [{"ready"}, {"ready", "busy"}, {"busy"}, {"draining", "of another type"}, {"of another type", "silent"}]
FLEETS += [
    {"failing"},
    {"failing", "busy"},
    {"of another queue", "silent"},
    {"silent"},
    set(),
    set(WORKERS),
    {"busy", "draining"},
]
RARELY = st.sampled_from([False] * 9 + [True])
WORLDS = st.builds(
    World,
    workers=st.sampled_from(FLEETS).map(frozenset),
    later=RARELY,
    failed_before=st.booleans(),
    queue_paused=RARELY,
    type_paused=RARELY,
    expired=RARELY,
    turn=st.sampled_from(["none"] * 4 + ["first", "after one that waits", "after one that runs"]),
    limit=st.sampled_from(["none"] * 4 + ["room", "queue full", "type full"]),
    rate=st.sampled_from(["none"] * 4 + ["some left", "used up"]),
    ahead=st.sampled_from([0, 0, 2]),
    chosen=RARELY,
)


PLAIN = World(
    workers=frozenset({"ready"}),
    later=False,
    failed_before=False,
    queue_paused=False,
    type_paused=False,
    expired=False,
    turn="none",
    limit="none",
    rate="none",
    ahead=0,
    chosen=False,
)


CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"later": True},
    {"later": True, "failed_before": True},
    *({"workers": frozenset({fleet})} for fleet in WORKERS),
    *({"queue_paused": True}, {"type_paused": True}, {"expired": True}, {"ahead": 2}, {"rate": "used up"}),
    *({"chosen": True}, {"chosen": True, "ahead": 2}, {"chosen": True, "workers": frozenset({"busy"})}),
    *({"turn": "after one that waits"}, {"turn": "after one that runs"}, {"turn": "first"}),
    *({"limit": "queue full"}, {"limit": "type full", "ahead": 2}),
)
"""One fact, beside the plain ones."""


def build(world: World, engine: Engine, jobs: Jobs) -> Any:
    """Write a world; return its job's id."""
    for name in sorted(world.workers):
        selectors = {"default": {"function": "shop:pick", "window": 100, "max_wait": None}} if world.chosen else {}
        jobs.add_worker(name, selectors=selectors, **COLUMNS.get(name, {}))
    if "busy" in world.workers:
        jobs.add(JobStatus.RUNNING, worker_id="busy", queue="elsewhere", type_name="filler")
    key = None if world.turn == "none" else "k"
    if world.turn.startswith("after"):
        running = world.turn == "after one that runs"
        status = JobStatus.RUNNING if running else JobStatus.PENDING
        # Elsewhere: its turn is to be what holds the job back, and not its place in the queue.
        jobs.add(status, worker_id="gone", queue="elsewhere", type_name="filler", ordering_key=key, due_in=-3600)
    if world.limit.endswith("full"):
        place = {"queue": "elsewhere"} if world.limit == "type full" else {"type_name": "filler"}
        jobs.add(JobStatus.RUNNING, worker_id="gone", **place)
    if world.ahead:
        jobs.add_many(world.ahead, priority=3)
    columns: dict[str, Any] = {"due_in": 3600 if world.later else -60, "ordering_key": key}
    if world.expired:
        columns["expires_at"] = func.now() - timedelta(seconds=1)
    job_id = jobs.add(**columns, attempt=int(world.failed_before))
    with engine.begin() as connection:
        if world.failed_before:
            error = {"type": "ValueError", "message": "no route", "traceback": ""}
            attempt = {"job_id": job_id, "attempt": 1, "outcome": "failed", "error": error}
            connection.execute(insert(Job.Attempt).values(attempt))
        rules: list[tuple[Any, dict[str, Any], bool, bool]] = [
            (Job.Queue, {"name": "default"}, world.queue_paused, world.limit in {"room", "queue full"}),
            (Job.JobType, {"type_name": "test"}, world.type_paused, world.limit in {"room", "type full"}),
        ]
        for table, row_name, paused, limited in rules:
            row: dict[str, Any] = {**row_name, "global_concurrency": 1 if limited else None}
            if table is Job.Queue and world.rate != "none":
                tokens = 1.5 if world.rate == "some left" else 0.5
                row |= {"rate_limit": 1, "rate_period": timedelta(days=1), "rate_burst": 5}
                state = {"is_type": False, "name": "default", "tokens": tokens, "spent_at": func.now()}
                connection.execute(insert(Job.RateState).values(state))
            row |= {"paused_at": func.now(), "paused_by": "somebody"} if paused else {}
            connection.execute(insert(table).values(row))
    return job_id


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.long)])
def test_explain_names_the_first_cause_in_any_combination_of_causes(engine: Engine, jobs: Jobs, examples: int) -> None:
    causes: set[Cause] = set()

    def check(world: World) -> None:
        write(engine, SWEEP)
        job_id = build(world, engine, jobs)
        explanation = call(engine, explain_job, job_id)
        assert explanation.cause is world.cause(), explanation.sentence
        assert explanation.sentence.endswith(".")
        assert "None" not in explanation.sentence
        assert "unknown" not in explanation.sentence
        causes.add(explanation.cause)

    for change in CHANGES:
        check(replace(PLAIN, **change))
    of_pending = set(Cause) - {Cause.COMPLETED, Cause.CANCELLED, Cause.DEAD, Cause.RUNNING, Cause.WORKER_SILENT}
    elsewhere = {Cause.BLOCKED, Cause.UNBLOCKING, Cause.QUARANTINED, Cause.LOCKED, Cause.SLEEPING, Cause.WAITING_FOR_EVENT}
    elsewhere |= {Cause.STATUS_UNKNOWN, Cause.ROWS_HIDDEN, Cause.NOT_MEASURED}
    elsewhere |= {Cause.VERSION_UNKNOWN, Cause.WAITING_FOR_CHILD}
    assert causes == of_pending - elsewhere
    together = given(world=WORLDS)(check)
    settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))(
        together
    )()
