"""The end of a chain passed on while its chain is opened again, or whoever waits for it is ended by others."""

from __future__ import annotations

import pytest

from sa_jobqueue.operations import unblocking
from tests.explorer import Explorer
from tests.explorer import chains as ops
from tests.explorer.chains import Scene, prove
from tests.fixtures.database import one_server_swept

pytestmark = one_server_swept


def failed(scene: Scene, on_failure: str) -> Scene:
    """A chain of two jobs died, and j waits for it."""
    return scene.runs("x").goes_on("x", "x1").runs("x1").adds("j", "x", on_failure=on_failure).ends("x1", "dead")


def test_a_chain_is_settled_once_by_whoever_comes_first(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "x").ends("x"),
        ops.settles("x", name="unblock-1"),
        ops.settles("x", name="unblock-2"),
    )
    assert set(report.endings) == {"j=pending k=pending x=completed"}
    assert report.blocked == 0


@pytest.mark.long
@pytest.mark.parametrize("on_failure", ["wait", "fail", "continue"])
def test_a_failure_that_is_passed_on_meets_its_redrive(explorer: Explorer, on_failure: str) -> None:
    report = prove(explorer, lambda scene: failed(scene, on_failure), ops.settles("x"), ops.redrives("x1"))
    passed_on = {"wait": "blocked", "fail": "dead", "continue": "pending"}[on_failure]
    assert set(report.endings) <= {f"j={stands} x=completed x1=pending" for stands in (passed_on, "blocked")}
    assert f"j={passed_on} x=completed x1=pending" in report.endings


@pytest.mark.long
def test_a_redriven_chain_that_ends_again_meets_its_first_end(explorer: Explorer) -> None:
    """Whatever of the first end was passed on, the second is, too."""
    for on_failure in ("wait", "fail"):
        report = prove(
            explorer,
            lambda scene: failed(scene, on_failure),  # noqa: B023 - called within the loop
            ops.redrives("x1", whole=True),
            ops.settles("x", whole=True),
            ops.completes_without_worker("x1", whole=True),
        )
        allowed = {f"j={stands} x=completed x1={x1}" for stands in ("blocked", "dead") for x1 in ("pending", "dead")}
        assert set(report.endings) <= allowed | {f"j={stands} x=completed x1=completed" for stands in ("pending", "dead")}


@pytest.mark.long
def test_a_waiting_job_cancelled_or_deleted_meets_the_end_it_waits_for(explorer: Explorer) -> None:
    """It is cancelled, whoever comes first; and those who wait for it are told in their turn."""
    for cancels in (ops.cancels("j"), ops.cancels_chain("j", whole=True)):
        report = prove(
            explorer,
            lambda scene: scene.runs("x").adds("j", "x").adds("k", "j", on_failure="fail").ends("x"),
            ops.settles("x"),
            cancels,
        )
        assert set(report.endings) == {"j=cancelled k=dead x=completed"}
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "x").ends("x"),
        ops.settles("x"),
        ops.deletes("j", whole=True),
    )
    assert set(report.endings) == {"k=pending x=completed"}


@pytest.mark.long
def test_the_redrive_of_a_job_meets_the_end_of_what_it_still_waits_for(explorer: Explorer) -> None:
    """Dead of one blocker, it waits for the other when it is redriven, if that has not ended by then."""

    def died_of_x(scene: Scene) -> Scene:
        scene.runs("x", "y").adds("j", "x", "y", on_failure="fail").adds("k", "j").ends("x", "dead").settles()
        return scene.ends("y")

    for settles in (ops.settles("y"), ops.settles("x", "y")):
        report = prove(explorer, died_of_x, ops.redrives("j"), settles)
        # x is still dead, so whoever settles next buries j again.
        assert set(report.endings) == {"j=dead k=blocked x=dead y=completed"}
    both = prove(
        explorer,
        died_of_x,
        ops.redrives("j", whole=True),
        ops.redrives("x", whole=True),
        ops.settles("x", "y", whole=True),
    )
    assert {ending.split()[0] for ending in both.endings} == {"j=blocked", "j=dead"}, str(both)
    together = prove(explorer, died_of_x, ops.redrives("j", "x", whole=True), ops.settles("y"))
    assert set(together.endings) == {"j=blocked k=blocked x=pending y=completed"}


@pytest.mark.long
def test_the_redrive_of_a_job_meets_the_redrive_and_the_end_of_its_blocker(explorer: Explorer) -> None:
    report = prove(
        explorer,
        lambda scene: failed(scene, "fail").settles(),
        ops.redrives("j"),
        ops.redrives("x1"),
    )
    assert report.blocked > 0
    assert {ending.split()[0] for ending in report.endings} <= {"j=blocked", "j=dead"}
    assert "j=blocked x=completed x1=pending" in report.endings
    again = prove(
        explorer,
        lambda scene: failed(scene, "fail").settles(),
        ops.redrives("j", whole=True),
        ops.redrives("x1", whole=True),
        ops.completes_without_worker("x1", whole=True),
    )
    assert "j=pending x=completed x1=completed" in again.endings, str(again)


def test_a_redrive_takes_its_locks_in_the_order_of_all(explorer: Explorer) -> None:
    """Those of the chains it waits for come before its own, as for whoever takes both."""
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x", on_failure="fail").ends("x", "dead").settles(),
        ops.redrives("j"),
        ops.cancels("x", "j"),
    )
    assert set(report.endings) == {"j=dead x=dead", "j=cancelled x=dead"}
    assert report.blocked > 0


@pytest.mark.long
def test_a_redrive_meets_a_job_that_begins_to_wait(explorer: Explorer) -> None:
    for on_failure in ("wait", "fail"):
        report = prove(
            explorer,
            lambda scene: scene.runs("x").ends("x", "dead"),
            ops.redrives("x"),
            ops.enqueues("j", "x", on_failure=on_failure),
        )
        assert set(report.endings) <= {"j=blocked x=pending", "j=dead x=pending"}


def test_a_death_that_kills_a_continuation_meets_its_chain(explorer: Explorer) -> None:
    """The job that dies of its blocker is the last of a chain that others extend, cancel and wait for."""

    def waits_in_a_chain(scene: Scene) -> Scene:
        scene.runs("x", "y").goes_on("y", "y1", "x", on_failure="fail")
        return scene.adds("k", "y", on_failure="fail").ends("x", "dead")

    report = prove(explorer, waits_in_a_chain, ops.settles("x"), ops.enqueues("j", "y"))
    assert set(report.endings) == {"j=blocked k=dead x=dead y=completed y1=dead"}
    report = prove(explorer, waits_in_a_chain, ops.settles("x"), ops.cancels_chain("y", whole=True))
    assert set(report.endings) == {"k=dead x=dead y=completed y1=dead", "k=dead x=dead y=completed y1=cancelled"}
    report = prove(explorer, waits_in_a_chain, ops.settles("x"), ops.completes_without_worker("y1", "y2", whole=True))
    assert {"k=dead x=dead y=completed y1=dead", "k=blocked x=dead y=completed y1=completed y2=pending"} == set(
        report.endings
    )


@pytest.mark.long
def test_a_job_held_while_many_are_told_is_told_later(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that many wait for takes several transactions; one that was held in the first is not forgotten in the last."""
    monkeypatch.setattr(unblocking, "BATCH", 1)
    monkeypatch.setattr(unblocking, "ROUNDS", 1)
    report = prove(
        explorer,
        lambda scene: scene.runs("x").adds("j", "x").adds("k", "x").adds("l", "x").ends("x"),
        ops.settles_to_the_end("x"),
        ops.cancels("k", whole=True),
    )
    assert set(report.endings) == {"j=pending k=cancelled l=pending x=completed"}
