"""A job that begins to wait for a chain while others end the chain, continue it, reopen it, or delete it."""

from __future__ import annotations

import pytest

from tests.explorer import Explorer
from tests.explorer import chains as ops
from tests.explorer.chains import Scene, prove


def running(scene: Scene) -> Scene:
    """Chain x is one job that runs."""
    return scene.runs("x")


def grown(scene: Scene) -> Scene:
    """Chain x has gone on: its second job, x1, runs."""
    return scene.runs("x").continues("x", "x1").runs("x1")


@pytest.mark.slow
def test_enqueue_races_with_the_completion_of_its_blocker(explorer: Explorer) -> None:
    report = prove(explorer, running, ops.enqueues("j", "x"), ops.completes("x"), ends=["j=pending x=completed"])
    # The completion passes over what the enqueueing holds, and is tried again.
    assert any("held" not in kinds for kinds in report.outcomes)
    prove(explorer, grown, ops.enqueues("j", "x"), ops.completes("x1"), ends=["j=pending x=completed x1=completed"])


@pytest.mark.slow
def test_enqueue_races_with_the_completion_of_its_blocker_in_a_session(explorer: Explorer) -> None:
    for setup, job in ((running, "x"), (grown, "x1")):
        report = prove(explorer, setup, ops.enqueues("j", "x"), ops.completes_in_session(job))
        assert report.blocked > 0


@pytest.mark.long
def test_enqueue_races_with_a_continuation_of_its_blocker(explorer: Explorer) -> None:
    """It waits for the chain's new last job, in either order."""
    for setup, job, to in ((running, "x", "x1"), (grown, "x1", "x2")):
        for continues in (ops.completes(job, to), ops.completes_in_session(job, to)):
            report = prove(explorer, setup, ops.enqueues("j", "x"), continues)
            assert all("j=blocked" in ending for ending in report.endings), str(report)


@pytest.mark.long
def test_enqueue_races_with_a_blocked_continuation_of_its_blocker(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x", "y"),
        ops.enqueues("j", "x", whole=True),
        ops.completes_in_session("x", "x1", "y", whole=True),
        ops.completes("y", unblocks=True),
    )
    assert all("j=blocked" in ending for ending in report.endings), str(report)
    assert any("x1=pending" in ending for ending in report.endings), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["wait", "fail", "continue"])
def test_enqueue_races_with_the_death_of_its_blocker(explorer: Explorer, on_failure: str) -> None:
    stands = {"wait": "j=blocked", "fail": "j=dead", "continue": "j=pending"}[on_failure]
    for setup, job in ((running, "x"), (grown, "x1")):
        report = prove(explorer, setup, ops.enqueues("j", "x", on_failure=on_failure), ops.finishes(job))
        assert {ending.split()[0] for ending in report.endings if f"{job}=dead" in ending} == {stands}, str(report)


@pytest.mark.long
def test_enqueue_races_with_a_rescue_that_kills_its_blocker(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x").continues("x", "x1", attempts=1).runs("x1"),
        ops.enqueues("j", "x", on_failure="fail"),
        ops.rescues(),
        ends=["j=dead x=completed x1=dead"],
    )
    assert set(report.endings) <= {"j=dead x=completed x1=dead", "j=blocked x=completed x1=running"}
    prove(
        explorer,
        lambda scene: scene.runs("x", attempts=1),
        ops.enqueues("j", "x", on_failure="continue", whole=True),
        ops.rescues(),
        ops.completes("x"),
        ends=["j=pending x=dead", "j=pending x=completed"],
    )


@pytest.mark.long
@pytest.mark.parametrize("on_failure", ["wait", "fail", "continue"])
def test_enqueue_races_with_the_redrive_of_its_blocker(explorer: Explorer, on_failure: str) -> None:
    first, last = {"wait": ("blocked", "blocked"), "fail": ("dead", "blocked"), "continue": ("pending", "blocked")}[
        on_failure
    ]
    report = prove(
        explorer,
        lambda scene: scene.runs("x").continues("x", "x1").runs("x1").ends("x1", "dead"),
        ops.enqueues("j", "x", on_failure=on_failure, whole=True),
        ops.redrives("x1", whole=True),
        ops.unblocks("x", whole=True),
    )
    assert {ending.split()[0] for ending in report.endings} <= {f"j={first}", f"j={last}"}, str(report)
    assert all("x1=pending" in ending for ending in report.endings)


@pytest.mark.slow
def test_enqueue_races_with_the_cancellation_of_its_blocker(explorer: Explorer) -> None:
    for cancels in (ops.cancels("x1"), ops.cancels_chain("x")):
        report = prove(explorer, grown, ops.enqueues("j", "x", on_failure="fail"), cancels)
        assert set(report.endings) == {"j=dead x=completed x1=cancelled"}


@pytest.mark.slow
def test_enqueue_races_with_deletion_and_completion_of_its_blocker(explorer: Explorer) -> None:
    report = prove(explorer, running, ops.enqueues("j", "x", whole=True), ops.deletes("x", whole=True), ops.completes("x"))
    assert set(report.endings) == {"", "j=pending x=completed", "j=blocked x=running"}
    assert any("NotFoundError" in kinds for kinds in report.outcomes)
    assert any("ChainReferencedError" in kinds for kinds in report.outcomes)


@pytest.mark.long
def test_jobs_blocked_by_the_same_chains_never_deadlock(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x", "y"),
        ops.enqueues("j", "x", "y"),
        ops.enqueues("k", "y", "x"),
        ends=["j=blocked k=blocked x=running y=running"],
    )
    assert report.blocked > 0
    prove(
        explorer,
        lambda scene: scene.runs("x", "y").continues("y", "y1").runs("y1"),
        ops.enqueues("j", "x", "y", whole=True),
        ops.completes_in_session("x", "x1", "y", whole=True),
        ops.completes_in_session("y1", "y2", whole=True),
    )


@pytest.mark.long
def test_a_claim_never_takes_a_job_with_open_blockers(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x"),
        ops.enqueues("j", "x", whole=True),
        ops.completes("x", unblocks=True),
        ops.claims(),
    )
    assert {"j=running x=completed", "j=pending x=completed"} <= set(report.endings), str(report)
