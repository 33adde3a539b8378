"""A job begins to wait for the results of others, for one or for the first, while these end or are cancelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ChildJob, Job, JobQueue, JobStatus
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.errors import LostAttemptError
from sa_jobqueue.operations.steps import record_step
from sa_jobqueue.statements import chains
from sa_jobqueue.types import ENDED, StepKind
from sa_jobqueue.worker.run.step_groups import StepGroups
from sa_jobqueue.worker.run.steps import Busy, Suspended
from tests.explorer import Explorer, Operation, Outcomes, Report, Scenario, ScheduleFailed
from tests.explorer import chains as ops
from tests.explorer.chains import WORKER, Scene

queue: JobQueue[Any] = JobQueue()


@queue.handler("test")
def child_handler(payload: Any) -> Any: ...


def parent_of(*children: str) -> Any:
    """Return the set-up of a running job that has enqueued others, which run, and recorded that it waits for them."""

    def setup(scene: Scene) -> Scene:
        scene.runs("parent", *children)
        for name in children:
            wait: dict[str, Any] = {"kind": StepKind.RUN, "place": ("test", name), "is_over": False}
            job = ClaimedJob(**scene.claimed["parent"]._mapping)
            record_step(scene._session, Job, job, WORKER, child_chain_id=scene.ids[name], **wait)
        marked = update(Job).where(Job.id.in_([scene.ids[name] for name in children]))
        scene._session.execute(marked.values(has_waiters=True))
        return scene

    return setup


def steps_of(scene: Scene) -> StepGroups:
    """Return the steps of the parent's attempt."""
    store: Any = SimpleNamespace(model=Job, registry=queue.registry)
    job = ClaimedJob(**scene.claimed["parent"]._mapping)
    context: Any = SimpleNamespace(job=job, worker_id=WORKER, attempt=job.attempt, suspended=None)
    return StepGroups(store, context)


def looks(child: str) -> Operation[Scene]:
    """The parent looks for the result of a job, and ends its attempt if there is none yet: the transaction of `ctx.run`."""

    def look(session: Session, scene: Scene) -> str:
        attempt_steps = steps_of(scene)
        ending = attempt_steps._result_of(
            ("test", child), scene.ids[child], child_handler.job_type, True, session.connection()
        )
        return "waits" if isinstance(ending, Suspended) else str(ending["status"])

    return ops.in_transaction("look", look, may_raise=(LostAttemptError,))


def looks_for_first(*children: str, losers: str = "leave") -> Operation[Scene]:
    """The same for the first of several: the transaction of `ctx.first`."""

    def look(session: Session, scene: Scene) -> str:
        attempt_steps = steps_of(scene)
        members = [attempt_steps._member("first", ChildJob(child_handler, key=name)) for name in children]
        child_ids = {("test", name): scene.ids[name] for name in children}
        ending = attempt_steps._look_for_first(("winner", ""), members, child_ids, losers, session.connection())
        return "waits" if isinstance(ending, Suspended) else f"won by {ending[0][1]}"

    return ops.in_transaction("look", look, may_raise=(LostAttemptError, Busy))


def explored(
    explorer: Explorer, *operations: Operation[Scene], children: tuple[str, ...], sample: tuple[int, int] | None = None
) -> Report:
    """Explore every order, and check that a parent that waits is due if one of the chains has ended, and only then."""

    def nobody_is_stranded(connection: Connection, scene: Scene, outcomes: Outcomes) -> str:
        ops.unblock_ended_chains(connection)  # as the worker that ended a chain does, or the rescuer
        is_due = Job.scheduled_at <= func.now()
        parent = connection.execute(select(Job.status, is_due).where(Job.id == scene.ids["parent"])).one()
        roots = select(Job.chain_completed_at).where(Job.id.in_([scene.ids[name] for name in children]))
        has_ended = any(ended_at is not None for ended_at in connection.scalars(roots))
        outcome = outcomes["look"]
        ending = outcome.kind if outcome.error is not None else str(outcome.value)
        if ending == "waits" and parent[0] not in ENDED:
            assert tuple(parent) == (JobStatus.PENDING, has_ended), "a parent is stranded, or woken for nothing"
        return ending

    scenario = Scenario(
        name=" x ".join(operation.name for operation in operations),
        setup=lambda session: parent_of(*children)(Scene(session)),
        operations=operations,
        check=nobody_is_stranded,
    )
    report = explorer.explore(scenario, sample=sample)
    assert report.is_complete or sample is not None
    return report


@pytest.mark.slow
def test_a_parent_that_begins_to_wait_while_its_child_ends_is_never_stranded(explorer: Explorer) -> None:
    report = explored(explorer, looks("child"), ops.completes("child", unblocks=True), children=("child",))
    assert set(report.endings) == {"waits", "completed"}
    in_session = explored(explorer, looks("child"), ops.completes_in_session("child"), children=("child",))
    assert set(in_session.endings) == {"waits", "completed"}


def test_without_the_lock_of_the_root_some_order_strands_the_parent(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlocked(model: Any) -> Any:
        statement = chains.lock(model)._clone()
        statement._for_update_arg = None
        return statement

    monkeypatch.setattr("sa_jobqueue.worker.run.steps.chains", SimpleNamespace(lock=unlocked))
    with pytest.raises(ScheduleFailed):
        explored(explorer, looks("child"), ops.completes("child", unblocks=True), children=("child",))


@pytest.mark.slow
def test_the_first_of_two_children_wakes_the_parent(explorer: Explorer) -> None:
    report = explored(explorer, looks_for_first("x", "y"), ops.completes("x", unblocks=True), children=("x", "y"))
    assert set(report.endings) == {"waits", "won by x"}


@pytest.mark.long
def test_both_children_end_while_the_parent_begins_to_wait_for_the_first(explorer: Explorer) -> None:
    report = explored(
        explorer,
        looks_for_first("x", "y"),
        ops.completes("x", unblocks=True),
        ops.completes("y", unblocks=True),
        children=("x", "y"),
        sample=(60, 1),
    )
    assert {"waits", "won by x"} <= set(report.endings)


@pytest.mark.long
def test_a_child_is_cancelled_while_the_parent_begins_to_wait(explorer: Explorer) -> None:
    report = explored(explorer, looks("child"), ops.cancels_chain("child"), children=("child",))
    assert {"waits", "cancelled"} == set(report.endings)


@pytest.mark.long
def test_the_parent_is_cancelled_with_its_child_while_it_begins_to_wait(explorer: Explorer) -> None:
    report = explored(
        explorer, looks("child"), ops.cancels_chain("parent"), ops.completes("child", unblocks=True), children=("child",)
    )
    assert "waits" in report.endings
