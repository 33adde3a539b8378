"""Three workers at one job: claims, heartbeats, silence, rescues, completions and redrives in every order there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests.explorer import Explorer, Operation, Outcomes, Scenario, ScheduleFailed
from tests.explorer.leases import (
    Given,
    SimulatedWorker,
    commit,
    complete_and_commit,
    keeps_the_promises,
    one_job,
    redrives,
    worker_operation,
)
from tests.model.protocol import Held, State, steps

FENCE = r" AND job\.attempt = [^=]*? AND job\.leased_by = %\(worker_id\)s::VARCHAR"
LOCK = r" FOR NO KEY UPDATE SKIP LOCKED"


def of_the_model(connection: Connection, setup: Given, outcomes: Outcomes) -> str:
    """Check the promises, and that all that happened is a way through the model, which ends where the row stands."""
    state = State(Held(most=setup.most))
    for entry in setup.log:
        possible = [
            step
            for step in steps(state)
            if (step.action, step.worker, step.accepted) == (entry.action, entry.worker, entry.accepted)
            and (step.action != "claim" or step.after.holds[step.worker] is not None)
        ]
        if entry.action in {"claim", "rescue"} and entry.attempt is None:
            assert not possible, f"{entry} found nothing in {state}"
            continue
        assert possible or entry.action == "heartbeat", f"{entry} in {state}"
        state = possible[0].after if possible else state
    ending = keeps_the_promises(connection, setup, outcomes)
    assert ending == state.job.status.value
    return ending


@contextmanager
def without(mechanism: str, instead: str = "") -> Iterator[None]:
    """Take what matches out of every statement that is sent; fail if that was in none."""
    changed_rows = 0

    def change(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> tuple[str, Any]:
        nonlocal changed_rows
        changed, count = re.subn(mechanism, instead, statement, flags=re.DOTALL)
        changed_rows += count
        return changed, parameters

    event.listen(Engine, "before_cursor_execute", change, retval=True)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", change)
    assert changed_rows, f"no statement has {mechanism!r}"


def three_workers() -> Scenario[Given]:
    """One worker falls silent with the job in hand, and wakes up; two others live on, one of them to its end."""
    return Scenario(
        name="three workers, one of them silent for a while",
        setup=one_job,
        operations=[
            worker_operation(
                0, SimulatedWorker.claim, SimulatedWorker.fall_silent, SimulatedWorker.heartbeat, SimulatedWorker.complete
            ),
            worker_operation(1, SimulatedWorker.rescue, SimulatedWorker.claim, SimulatedWorker.complete),
            worker_operation(2, SimulatedWorker.rescue, SimulatedWorker.claim),
        ],
        check=of_the_model,
    )


def held_by_the_silent(*operations: Operation[Given], most: int = 2) -> Scenario[Given]:
    """The first worker has the job and is silent; what follows holds its locks for longer than a statement."""
    return Scenario(
        name="three workers, transactions that last",
        setup=partial(one_job, most=most, is_leased=True),
        operations=operations,
        check=keeps_the_promises,
    )


def locks() -> Scenario[Given]:
    return held_by_the_silent(
        worker_operation(0, SimulatedWorker.complete_in_session, autocommit=False, has_the_job=True),
        worker_operation(1, SimulatedWorker.rescue, autocommit=False),
        worker_operation(2, SimulatedWorker.claim, commit, complete_and_commit, autocommit=False),
    )


def claims() -> Scenario[Given]:
    """All three claim at once, and the transaction of each claim lasts."""
    return Scenario(
        name="three claims at once",
        setup=one_job,
        operations=[worker_operation(number, SimulatedWorker.claim, autocommit=False) for number in range(3)],
        check=keeps_the_promises,
    )


def redriven() -> Scenario[Given]:
    return held_by_the_silent(
        worker_operation(0, SimulatedWorker.complete, has_the_job=True),
        worker_operation(1, SimulatedWorker.rescue),
        worker_operation(2, SimulatedWorker.claim),
        redrives(),
        most=1,
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_workers_match_the_lease_model_in_every_order(explorer: Explorer) -> None:
    report = explorer.explore(three_workers())
    assert report.is_complete
    assert report.schedules == 1260
    assert set(report.endings) == {"completed", "running"}


@pytest.mark.long
def test_a_late_completion_a_rescue_and_a_claim_serialize_and_one_wins(explorer: Explorer) -> None:
    report = explorer.explore(locks())
    assert report.is_complete
    assert report.blocked > 0
    assert any("worker-0=Lost" in kinds for kinds in report.outcomes)
    assert any("worker-0=committed" in kinds for kinds in report.outcomes)


@pytest.mark.long
def test_a_job_that_died_with_its_worker_is_redriven_and_completed_once(explorer: Explorer) -> None:
    report = explorer.explore(redriven())
    assert report.is_complete
    assert set(report.endings) >= {"completed", "dead", "pending"}


@pytest.mark.long
def test_one_of_three_concurrent_claims_gets_the_job(explorer: Explorer) -> None:
    report = explorer.explore(claims())
    assert (report.schedules, report.is_complete) == (90, True)
    assert report.blocked == 0  # what one has locked the others pass by
    assert set(report.endings) == {"running"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "order", "mechanism", "instead", "violated"),
    [
        # Silent while it holds the job, which is rescued, claimed by another, completed by the first.
        (three_workers, "0 0 1 1 0 0", FENCE, "", "action='complete', worker=0, attempt=1, accepted=True"),
        (locks, "1 1 2 2 0", FENCE, "", "an attempt ends once"),
        # Claimed by a worker with heartbeats, and rescued.
        (
            three_workers,
            "0 1",
            r"worker\.heartbeat_at \+ worker\.heartbeat_pause \+ %\(ttl\)s < now\(\)",
            "true",
            "action='rescue', worker=1",
        ),
        # Two claims before either commits.
        (claims, "0 1 0", LOCK + r"(?=\) AS (probe|since|in_flight))", "", "an attempt has one owner"),
    ],
    ids=["no fence", "no fence in a session", "no heartbeat check", "no lock in the claim"],
)
def test_without_the_fence_or_lock_some_order_violates_an_invariant(
    explorer: Explorer, scenario: Callable[[], Scenario[Given]], order: str, mechanism: str, instead: str, violated: str
) -> None:
    line = " ".join(f"worker-{number}" for number in order.split())
    explorer.replay(scenario(), line)
    with without(mechanism, instead), pytest.raises(ScheduleFailed, match=violated):
        explorer.replay(scenario(), line)
