"""Chains that end, continue, are cancelled or completed while others do the same, and the jobs that wait for them."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.operations import complete_job, lock_chain
from sa_jobqueue.types import ENDED
from tests.explorer import Explorer, Operation, Steps
from tests.explorer import chains as ops
from tests.explorer.chains import Scene, prove


def fan_in(scene: Scene) -> Scene:
    """A job j waits for two jobs that run."""
    return scene.runs("x", "y").adds("j", "x", "y")


def grown(scene: Scene) -> Scene:
    """A job j waits for a chain that has gone on, and whose second job runs."""
    return scene.runs("x").continues("x", "x1").runs("x1").adds("j", "x")


@pytest.mark.slow
def test_two_blockers_completing_concurrently_unblock_the_job(explorer: Explorer) -> None:
    """Each may see the other as not ended, and the job starts all the same: each only counts off its own."""
    report = prove(explorer, fan_in, ops.completes("x", unblocks=True), ops.completes("y", unblocks=True))
    assert set(report.endings) == {"j=pending x=completed y=completed"}
    in_sessions = prove(explorer, fan_in, ops.completes_in_session("x"), ops.completes_in_session("y"))
    assert set(in_sessions.endings) == {"j=pending x=completed y=completed"}


@pytest.mark.slow
def test_two_concurrent_unblockers_unblock_the_job_without_waiting(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: fan_in(scene).ends("x").ends("y"),
        ops.unblocks("x", name="unblock-x"),
        ops.unblocks("y", name="unblock-y"),
    )
    assert set(report.endings) == {"j=pending x=completed y=completed"}
    # Where both work on the job at once, one leaves it for later: neither waits, and neither writes from an old snapshot.
    assert report.blocked == 0


@pytest.mark.long
def test_two_blockers_completed_concurrently_without_a_worker_unblock_the_job(explorer: Explorer) -> None:
    report = prove(
        explorer,
        fan_in,
        ops.completes_without_worker("x"),
        ops.completes_without_worker("y"),
        sample=(40, 3),
    )
    assert set(report.endings) == {"j=pending x=completed y=completed"}
    prove(
        explorer,
        lambda scene: fan_in(scene).continues("x", "x1").runs("x1"),
        ops.completes_without_worker("x1", whole=True),
        ops.completes("y", unblocks=True),
        ops.claims(),
        sample=(50, 17),
        ends=["j=running x=completed x1=completed y=completed"],
    )


@pytest.mark.long
def test_a_fan_in_waits_for_continuations_added_concurrently(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x", "y"),
        ops.enqueues("j", "x", "y", whole=True),
        ops.completes_in_session("x", whole=True),
        ops.completes("y"),
    )
    assert "j=pending x=completed y=completed" in report.endings
    both = prove(
        explorer,
        lambda scene: scene.runs("x", "y").adds("j", "x", "y"),
        ops.completes("x", "x1"),
        ops.completes("y", unblocks=True),
        ops.unblocks("x", "y", whole=True),
    )
    assert set(both.endings) == {"j=blocked x=completed x1=pending y=completed"}


@pytest.mark.long
def test_an_attempt_and_its_chain_end_once_under_concurrent_completions(explorer: Explorer) -> None:
    for hand in (ops.completes_without_worker("x1", whole=True), ops.completes_without_worker("x1", "x2", whole=True)):
        report = prove(explorer, grown, hand, ops.completes("x1", "x3"), ops.completes_in_session("x1", whole=True))
        kinds = set(report.outcomes)
        assert any("application-x1=JobEndedError" in kind for kind in kinds)
        assert any("session-x1=LostAttemptError" in kind for kind in kinds)
        assert all(ending.count("x1=completed") == 1 for ending in report.endings)
        assert not any("x2=" in ending and "x3=" in ending for ending in report.endings)


@pytest.mark.long
def test_completing_a_job_without_a_worker_races_with_its_worker(explorer: Explorer) -> None:
    report = prove(explorer, grown, ops.completes_without_worker("x1"), ops.completes_in_session("x1"))
    assert set(report.endings) == {"j=pending x=completed x1=completed"}
    assert set(report.outcomes) == {
        "application-x1=committed session-x1=LostAttemptError",
        "application-x1=JobEndedError session-x1=committed",
    }
    prove(explorer, grown, ops.completes_without_worker("x1"), ops.finishes("x1"), ops.rescues(tries=1), sample=(40, 5))


@pytest.mark.long
def test_a_blocked_job_completed_without_a_worker_is_not_started_by_its_blocker(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "j").ends("x"),
        ops.completes_without_worker("j"),
        ops.unblocks("x"),
        sample=(40, 7),
    )
    assert set(report.endings) == {"j=completed k=pending x=completed"}


@pytest.mark.long
def test_cancellation_races_with_a_continuation(explorer: Explorer) -> None:
    """Of the job, it ends the chain or comes too late; of the chain, it ends it at whatever job it has come to."""

    def setup(scene: Scene) -> Scene:
        return scene.runs("x").continues("x", "x1").runs("x1").adds("j", "x", on_failure="fail")

    too_late, in_time = "j=blocked x=completed x1=completed x2=pending", "j=dead x=completed x1=cancelled"
    later = "j=dead x=completed x1=completed x2=cancelled"
    for continues in (ops.completes("x1", "x2"), ops.completes_in_session("x1", "x2")):
        report = prove(explorer, setup, ops.cancels("x1"), continues, ends=[too_late, in_time])
        assert set(report.endings) <= {too_late, in_time}
        report = prove(explorer, setup, ops.cancels_chain("x"), continues, ends=[later, in_time])
        assert set(report.endings) <= {later, in_time}


@pytest.mark.long
def test_cancellation_races_with_the_end_of_a_chain_and_its_dependants(explorer: Explorer) -> None:
    prove(
        explorer,
        lambda scene: scene.runs("x").continues("x", "x1").runs("x1"),
        ops.enqueues("j", "x", on_failure="fail", whole=True),
        ops.cancels_chain("x", whole=True),
        ops.completes_in_session("x1", whole=True),
        ends=["j=dead x=completed x1=cancelled", "j=pending x=completed x1=completed"],
    )
    prove(
        explorer,
        fan_in,
        ops.cancels("x", "j", whole=True),
        ops.completes("x", unblocks=True),
        ops.completes_in_session("y", whole=True),
        ends=["j=cancelled x=cancelled y=completed", "j=cancelled x=completed y=completed"],
    )


@pytest.mark.long
def test_a_continuation_blocked_by_ending_chains_never_deadlocks(explorer: Explorer) -> None:
    """It locks its own chain and theirs in one order, so neither the others nor it ever hold each other up in a circle."""
    report = prove(
        explorer,
        lambda scene: scene.runs("x", "y").continues("y", "y1").runs("y1"),
        ops.completes_in_session("y1", "y2", "x"),
        ops.completes("x", unblocks=True),
        ends=["x=completed y=completed y1=completed y2=pending"],
    )
    # Where the completion finds its chain held every time, it is not written yet, nor is anything else.
    assert set(report.endings) <= {
        "x=completed y=completed y1=completed y2=pending",
        "x=running y=completed y1=completed y2=blocked",
    }
    crossed = prove(
        explorer,
        lambda scene: scene.runs("x", "y", "z"),
        ops.completes_in_session("x", "x1", "y", "z"),
        ops.completes_in_session("y", "y1", "z"),
        ops.completes("z"),
        sample=(40, 11),
    )
    assert {"x1=blocked" in ending for ending in crossed.endings} == {True}
    # Two that wait for each other are a circle of the application's making, but no deadlock of the database.
    prove(
        explorer,
        lambda scene: scene.runs("x", "y"),
        ops.completes_in_session("x", "x1", "y"),
        ops.completes_in_session("y", "y1", "x"),
    )


@pytest.mark.slow
def test_a_locked_chain_is_never_seen_as_ended(explorer: Explorer) -> None:
    """The transaction that locks a chain holds its last job, so completing that cannot come too late."""

    def decide(session: Session, scene: Scene) -> None:
        job = lock_chain(session, scene.ids["x"])
        assert job.status not in ENDED
        complete_job(session, job.id, "decided")

    for continues in (ops.completes("x", "x1"), ops.completes_in_session("x", "x1")):
        report = prove(
            explorer,
            lambda scene: scene.runs("x").adds("j", "x"),
            ops.in_transaction("decide", decide, whole=True),
            continues,
        )
        assert set(report.endings) == {"j=pending x=completed", "j=pending x=completed x1=completed"}


@pytest.mark.slow
def test_dependants_missing_from_an_old_snapshot_are_unblocked_by_the_worker(explorer: Explorer) -> None:
    """In REPEATABLE READ an application may not see who began to wait since; its worker unblocks them."""

    def complete(session: Session, scene: Scene) -> Steps:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        session.execute(select(Job.id).where(Job.id == scene.ids["x"]))
        yield "snapshot"
        complete_job(session, scene.ids["x"])
        session.commit()
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})

    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x"),
        Operation("complete", complete),
        ops.enqueues("k", "x", whole=True),
    )
    assert set(report.endings) == {"j=pending k=pending x=completed"}


@pytest.mark.long
def test_enqueue_races_with_session_and_batch_completions_of_its_blockers(explorer: Explorer) -> None:
    prove(
        explorer,
        lambda scene: scene.runs("x", "y").continues("x", "x1").runs("x1"),
        ops.enqueues("j", "x", "y", whole=True),
        ops.completes_in_session("x1"),
        ops.completes("y", unblocks=True),
        sample=(60, 13),
        ends=["j=pending x=completed x1=completed y=completed"],
    )


@pytest.mark.long
def test_rescue_of_a_last_attempt_races_with_its_completion(explorer: Explorer) -> None:
    def setup(scene: Scene) -> Scene:
        return scene.runs("x").continues("x", "x1", attempts=1).runs("x1").adds("j", "x", on_failure="fail")

    for ends in (ops.completes("x1"), ops.completes_in_session("x1"), ops.completes("x1", "x2")):
        report = prove(explorer, setup, ops.rescues(), ends)
        assert {"j=dead" in ending for ending in report.endings if "x1=dead" in ending} == {True}
        assert all("j=dead" not in ending for ending in report.endings if "x1=completed" in ending)
    prove(
        explorer,
        setup,
        ops.rescues(tries=1),
        ops.completes("x1"),
        ops.cancels_chain("x", whole=True),
        ends=["j=dead x=completed x1=dead", "j=dead x=completed x1=cancelled", "j=pending x=completed x1=completed"],
    )
