"""Dependants of an ended chain are unblocked while the chain is redriven, or while others end them."""

from __future__ import annotations

import pytest

from sa_jobqueue.operations import blockers
from tests.explorer import Explorer
from tests.explorer import chains as ops
from tests.explorer.chains import Scene, prove


def failed(scene: Scene, on_failure: str) -> Scene:
    """A chain of two jobs died, and j waits for it."""
    return scene.runs("x").continues("x", "x1").runs("x1").adds("j", "x", on_failure=on_failure).ends("x1", "dead")


def test_two_unblockers_of_one_chain_unblock_each_dependant_once(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "x").ends("x"),
        ops.unblocks("x", name="unblock-1"),
        ops.unblocks("x", name="unblock-2"),
    )
    assert set(report.endings) == {"j=pending k=pending x=completed"}
    assert report.blocked == 0


@pytest.mark.long
@pytest.mark.parametrize("on_failure", ["wait", "fail", "continue"])
def test_unblocking_after_a_failure_races_with_the_redrive(explorer: Explorer, on_failure: str) -> None:
    report = prove(explorer, lambda scene: failed(scene, on_failure), ops.unblocks("x"), ops.redrives("x1"))
    passed_on = {"wait": "blocked", "fail": "dead", "continue": "pending"}[on_failure]
    assert set(report.endings) <= {f"j={stands} x=completed x1=pending" for stands in (passed_on, "blocked")}
    assert f"j={passed_on} x=completed x1=pending" in report.endings


@pytest.mark.long
def test_a_second_end_of_a_redriven_chain_races_with_unblocking_after_the_first(explorer: Explorer) -> None:
    """Whatever the first end unblocked, the second end takes effect too."""
    for on_failure in ("wait", "fail"):
        report = prove(
            explorer,
            lambda scene: failed(scene, on_failure),  # noqa: B023 - called within the loop
            ops.redrives("x1", whole=True),
            ops.unblocks("x", whole=True),
            ops.completes_without_worker("x1", whole=True),
        )
        allowed = {f"j={stands} x=completed x1={x1}" for stands in ("blocked", "dead") for x1 in ("pending", "dead")}
        assert set(report.endings) <= allowed | {f"j={stands} x=completed x1=completed" for stands in ("pending", "dead")}


@pytest.mark.long
def test_cancelling_or_deleting_a_blocked_job_races_with_unblocking_it(explorer: Explorer) -> None:
    """It is cancelled in any order, and its own dependants are unblocked in turn."""
    for cancels in (ops.cancels("j"), ops.cancels_chain("j", whole=True)):
        report = prove(
            explorer,
            lambda scene: scene.runs("x").adds("j", "x").adds("k", "j", on_failure="fail").ends("x"),
            ops.unblocks("x"),
            cancels,
        )
        assert set(report.endings) == {"j=cancelled k=dead x=completed"}
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "x").ends("x"),
        ops.unblocks("x"),
        ops.deletes("j", whole=True),
    )
    assert set(report.endings) == {"k=pending x=completed"}


@pytest.mark.long
def test_redrive_of_a_job_races_with_the_end_of_its_other_blocker(explorer: Explorer) -> None:
    """Dead of one blocker, it waits for the other when it is redriven, if that has not ended by then."""

    def died_of_x(scene: Scene) -> Scene:
        scene.runs("x", "y").adds("j", "x", "y", on_failure="fail").adds("k", "j").ends("x", "dead").unblocks()
        return scene.ends("y")

    for unblocks in (ops.unblocks("y"), ops.unblocks("x", "y")):
        report = prove(explorer, died_of_x, ops.redrives("j"), unblocks)
        # x is still dead, so the next unblocking kills j again.
        assert set(report.endings) == {"j=dead k=blocked x=dead y=completed"}
    both = prove(
        explorer,
        died_of_x,
        ops.redrives("j", whole=True),
        ops.redrives("x", whole=True),
        ops.unblocks("x", "y", whole=True),
    )
    assert {ending.split()[0] for ending in both.endings} == {"j=blocked", "j=dead"}, str(both)
    together = prove(explorer, died_of_x, ops.redrives("j", "x", whole=True), ops.unblocks("y"))
    assert set(together.endings) == {"j=blocked k=blocked x=pending y=completed"}


@pytest.mark.long
def test_redrive_of_a_job_races_with_redrive_and_completion_of_its_blocker(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: failed(scene, "fail").unblocks(),
        ops.redrives("j"),
        ops.redrives("x1"),
    )
    assert report.blocked > 0
    assert {ending.split()[0] for ending in report.endings} <= {"j=blocked", "j=dead"}
    assert "j=blocked x=completed x1=pending" in report.endings
    again = prove(
        explorer,
        lambda scene: failed(scene, "fail").unblocks(),
        ops.redrives("j", whole=True),
        ops.redrives("x1", whole=True),
        ops.completes_without_worker("x1", whole=True),
    )
    assert "j=pending x=completed x1=completed" in again.endings, str(again)


@pytest.mark.slow
def test_a_redrive_takes_its_locks_in_the_common_order(explorer: Explorer) -> None:
    """Those of the chains it waits for come before its own, as for every operation that takes both."""
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x", on_failure="fail").ends("x", "dead").unblocks(),
        ops.redrives("j"),
        ops.cancels("x", "j"),
    )
    assert set(report.endings) == {"j=dead x=dead", "j=cancelled x=dead"}
    assert report.blocked > 0


@pytest.mark.long
def test_redrive_races_with_enqueueing_a_dependant(explorer: Explorer) -> None:
    for on_failure in ("wait", "fail"):
        report = prove(
            explorer,
            lambda scene: scene.runs("x").ends("x", "dead"),
            ops.redrives("x"),
            ops.enqueues("j", "x", on_failure=on_failure),
        )
        assert set(report.endings) <= {"j=blocked x=pending", "j=dead x=pending"}


@pytest.mark.slow
def test_a_continuation_killed_by_its_blocker_races_with_changes_to_its_chain(explorer: Explorer) -> None:
    """The job that dies of its blocker is the last of a chain that others extend, cancel and wait for."""

    def waits_in_a_chain(scene: Scene) -> Scene:
        scene.runs("x", "y").continues("y", "y1", "x", on_failure="fail")
        return scene.adds("k", "y", on_failure="fail").ends("x", "dead")

    report = prove(explorer, waits_in_a_chain, ops.unblocks("x"), ops.enqueues("j", "y"))
    assert set(report.endings) == {"j=blocked k=dead x=dead y=completed y1=dead"}
    report = prove(explorer, waits_in_a_chain, ops.unblocks("x"), ops.cancels_chain("y", whole=True))
    assert set(report.endings) == {"k=dead x=dead y=completed y1=dead", "k=dead x=dead y=completed y1=cancelled"}
    report = prove(explorer, waits_in_a_chain, ops.unblocks("x"), ops.completes_without_worker("y1", "y2", whole=True))
    assert {"k=dead x=dead y=completed y1=dead", "k=blocked x=dead y=completed y1=completed y2=pending"} == set(
        report.endings
    )


@pytest.mark.long
def test_a_dependant_locked_during_unblocking_is_unblocked_later(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain that many wait for takes several transactions; one that was held in the first is not forgotten in the last."""
    monkeypatch.setattr(blockers, "BATCH", 1)
    monkeypatch.setattr(blockers, "ROUNDS", 1)
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "x").adds("l", "x").ends("x"),
        ops.unblocks_fully("x"),
        ops.cancels("k", whole=True),
    )
    assert set(report.endings) == {"j=pending k=cancelled l=pending x=completed"}
