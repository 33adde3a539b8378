"""Every state of the protocol of leases: one owner, no job lost, none stuck; and the statements behave as the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import JobStatus
from sa_jobqueue.operations import DeadLetterFilter, redrive_dead_letters
from sa_jobqueue.statements import leases
from sa_jobqueue.types import TRANSITIONS
from tests.fixtures.jobs import Jobs
from tests.fixtures.tallies import tally
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import ManualWorker
from tests.model.protocol import Held, State, Step, explore
from tests.statements.cases import heartbeat_parameters

ENDED = {JobStatus.COMPLETED, JobStatus.DEAD}


@pytest.fixture(scope="module")
def states() -> dict[State, list[Step]]:
    return explore()


def violations(states: dict[State, list[Step]]) -> set[str]:
    """Return the promises that some state, or some step, breaks."""
    broken = set()
    for state, following in states.items():
        job = state.job
        if (job.owner is not None) is not (job.status is JobStatus.RUNNING):
            broken.add("who runs it, owns it")
        for step in following:
            old, new = job, step.after.job
            if old.status is not new.status and (old.status, new.status) not in TRANSITIONS:
                broken.add("a transition is one of the table's")
            if new.attempt < old.attempt or (step.action == "claim" and new.attempt != old.attempt + 1):
                broken.add("attempts only grow, one a claim")
            if (
                step.action in {"complete", "fail"}
                and step.accepted
                and (old.owner, old.attempt)
                != (
                    step.worker,
                    state.holds[step.worker],
                )
            ):
                broken.add("an attempt is ended by its owner alone")
    return broken


@pytest.mark.slow
def test_every_state_of_three_workers_keeps_the_lease_invariants(
    states: dict[State, list[Step]], request: pytest.FixtureRequest
) -> None:
    assert violations(states) == set()
    assert len(states) > 1000
    tally(request.config, "states of the protocol of leases, each kept the promises", len(states))


@pytest.mark.slow
def test_without_the_fence_a_stale_worker_ends_anothers_attempt() -> None:
    """Without the fence, the model finds a worker that wakes up ends the attempt of the one after it."""
    assert violations(explore(fenced=False)) == {"an attempt is ended by its owner alone"}


def test_from_every_state_the_job_can_end_without_further_faults(states: dict[State, list[Step]]) -> None:
    """No job is stuck: whatever has happened, those who live bring it to its end."""
    before: dict[State, list[State]] = defaultdict(list)
    for state, following in states.items():
        for step in following:
            if step.action not in {"die", "fall silent", "redrive"}:
                before[step.after].append(state)
    reached = {state for state in states if state.job.status in ENDED}
    ahead = list(reached)
    while ahead:
        for state in before[ahead.pop()]:
            if state not in reached:
                reached.add(state)
                ahead.append(state)
    cut_off = {state for state in states if state.job.attempt >= 4}  # where the model stops counting
    assert {state for state in states if state not in reached} <= cut_off


@pytest.mark.slow
def test_the_lease_statements_match_the_protocol_model(
    states: dict[State, list[Step]], engine: Engine, jobs: Jobs, manual_worker: Callable[..., ManualWorker]
) -> None:
    """Each step of the model that touches the row, in each row it may find, once: by the real statement."""
    distinct: dict[tuple[Any, ...], tuple[State, Step]] = {}
    for state, following in states.items():
        owner = state.job.owner
        for step in following:
            if step.action in {"die", "fall silent"}:
                continue
            mine = owner == step.worker
            is_fresh = owner is not None and state.fresh[owner]
            key = (state.job._replace(owner=None), mine, is_fresh, step.action, state.holds[step.worker], step.accepted)
            distinct.setdefault(key, (state, step))
    workers = [manual_worker(f"w:{number}") for number in range(3)]
    for state, step in distinct.values():
        actual, expected = _done(engine, jobs, workers, state, step), _shown(step.after.job)
        if step.action == "redrive":
            assert actual[2] >= expected[2]
            expected = (*expected[:2], actual[2], expected[3])
        assert actual == expected, (state, step)
    assert len(distinct) > 50


def _shown(job: Held) -> tuple[str, int, int, str | None]:
    return job.status.value, job.attempt, job.most, None if job.owner is None else f"w:{job.owner}"


def _done(engine: Engine, jobs: Jobs, workers: list[ManualWorker], state: State, step: Step) -> Any:
    """Make the rows that a state says, let the statement of a step run, and return the job's row."""
    job = state.job
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM job_attempt; DELETE FROM dead_letter; DELETE FROM job; DELETE FROM worker"))
        for number, fresh in enumerate(state.fresh):
            connection.execute(leases.heartbeat(jobs.model), heartbeat_parameters(f"w:{number}"))
            if not fresh:
                silence_worker = text("UPDATE worker SET heartbeat_at = now() - interval '1 hour' WHERE id = :id")
                connection.execute(silence_worker, {"id": f"w:{number}"})
    columns = {"attempt": job.attempt, "max_attempts": job.most}
    job_id = jobs.add(job.status, worker_id=f"w:{job.owner}", **columns)
    worker = workers[step.worker]
    believed = SimpleNamespace(id=job_id, chain_id=job_id, attempt=state.holds[step.worker])
    match step.action:
        case "claim":
            worker.claim()
        case "heartbeat":
            write(engine, leases.heartbeat(jobs.model), heartbeat_parameters(worker.worker_id))
        case "rescue":
            worker.rescue()
        case "give back":
            worker.finish(SimpleNamespace(id=job_id, chain_id=job_id, attempt=job.attempt), outcome="released", uncounted=1)  # type: ignore[arg-type]
        case "complete":
            assert bool(worker.complete(believed)) is step.accepted  # type: ignore[arg-type]
        case "fail":
            last = (believed.attempt or 0) >= job.most
            ended = worker.finish(believed, status="dead" if last else "pending")  # type: ignore[arg-type]
            assert bool(ended) is step.accepted
        case "redrive":
            assert call(engine, redrive_dead_letters, where=DeadLetterFilter(job_ids=[job_id])).ids == [job_id]
    with engine.connect() as connection:
        statement = text("SELECT status::text, attempt, max_attempts, leased_by FROM job WHERE id = :id")
        return tuple(connection.execute(statement, {"id": job_id}).one())
