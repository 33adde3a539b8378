"""Which lanes a worker claims from: they open, are read to their end, linger and are forgotten."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sa_jobqueue.worker.claim.backlog import LINGER, LINGERING, Backlog
from sa_jobqueue.worker.claim.cursors import Cursors, Lane

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = Lane("q", "", 0), Lane("q", "1", 0)


class LaneState:
    """A backlog, the cursors of its lanes, and the plan."""

    def __init__(self) -> None:
        self.cursors = Cursors([], 0)
        self.planned: list[Lane] = []
        """Lanes that are open, in the order in which they were opened."""
        self.backlog = Backlog(self.cursors, self.planned.append, self.planned.remove)

    def found(self, *lanes: Lane, at: float = 0.0, now: float = 0.0) -> None:
        for lane in lanes:
            self.cursors.lower(lane, NOW)
            self.backlog.found(lane, at, now)

    def empty(self, *lanes: Lane, now: float = 0.0) -> None:
        """Read lanes to their end, and hear that they have no other job."""
        self.backlog.read_to_end(lanes, now)
        assert self.backlog.asks()
        self.backlog.answered(self.backlog.asks())


@pytest.fixture
def state() -> LaneState:
    return LaneState()


def test_a_lane_is_planned_from_its_first_due_job_until_a_claim_drains_it(state: LaneState) -> None:
    state.found(A, A)
    assert state.planned == [A]
    state.backlog.read_to_end([A, A], 1.0)
    assert state.planned == []
    assert state.backlog.asks() == [A]


def test_a_lane_with_unclaimed_late_arrivals_stays_open(state: LaneState) -> None:
    state.found(A)
    state.cursors.late[A] = {1: "7"}
    state.backlog.read_to_end([A], 1.0)
    assert state.planned == [A]
    assert state.backlog.asks() == []


def test_a_lane_with_unclaimed_late_arrivals_keeps_no_other_lane_open(state: LaneState) -> None:
    state.found(A, B)
    state.cursors.late[A] = {1: "7"}
    state.backlog.read_to_end([A, B], 1.0)
    assert state.planned == [A]


def test_a_lane_opens_when_its_next_scheduled_job_becomes_due(state: LaneState) -> None:
    state.found(A)
    state.backlog.read_to_end([A], 0.0)
    state.found(A, at=9.0, now=1.0)
    state.backlog.answered([A])
    assert state.backlog.next_at == 9.0
    state.backlog.wake(8.9)
    assert state.planned == []
    assert A in state.cursors.of_lane
    state.backlog.wake(9.0)
    assert state.planned == [A]
    assert state.backlog.next_at is None


def test_an_earlier_job_opens_a_lane_earlier_and_a_later_one_does_not_delay_it(state: LaneState) -> None:
    state.found(A, at=9.0)
    state.found(A, at=5.0)
    state.found(A, at=7.0)
    assert state.backlog.next_at == 5.0
    state.found(A, at=1.0, now=1.0)
    assert state.planned == [A]
    assert not state.backlog._opens_at
    state.backlog.wake(9.0)
    assert state.planned == [A]


def test_an_empty_lane_lingers_and_is_then_removed(state: LaneState) -> None:
    state.found(A)
    state.empty(A, now=1.0)
    state.backlog.wake(1.0 + LINGER - 0.1)
    assert A in state.cursors.of_lane
    state.backlog.wake(1.0 + LINGER)
    assert A not in state.cursors.of_lane
    assert not state.backlog.open_lingering()
    state.found(A, now=9.0)
    assert state.planned == [A]


def test_only_the_last_few_lanes_linger(state: LaneState) -> None:
    lanes = [Lane("q", str(number), 0) for number in range(3 * LINGERING)]
    state.found(*lanes)
    state.empty(*lanes)
    state.backlog.wake(0.0)
    assert list(state.cursors.of_lane) == lanes[-LINGERING:]


def test_a_woken_worker_scans_recently_emptied_lanes(state: LaneState) -> None:
    state.found(A, B)
    state.empty(A)
    state.backlog.read_to_end([B], 0.0)
    assert state.backlog.open_lingering()
    assert state.planned == [A, B]
    state.backlog.wake(9.0)
    assert set(state.cursors.of_lane) == {A, B}


def test_a_woken_worker_scans_a_bounded_number_of_lanes_with_unknown_next_job(state: LaneState) -> None:
    lanes = [Lane("q", str(number), 0) for number in range(3 * LINGERING)]
    state.found(*lanes)
    state.backlog.read_to_end(lanes, 0.0)
    assert state.backlog.open_lingering()
    assert state.planned == lanes[:LINGERING]


def test_a_lane_is_not_removed_before_its_next_job_was_queried(state: LaneState) -> None:
    lanes = [Lane("q", str(number), 0) for number in range(1000)]
    state.found(*lanes)
    state.backlog.read_to_end(lanes, 0.0)
    state.backlog.wake(1000.0)
    assert set(state.cursors.of_lane) == set(lanes)
    rounds = 0
    while lanes_asked := state.backlog.asks():
        state.backlog.answered(lanes_asked)
        assert len(lanes_asked) < 500
        rounds += 1
    state.backlog.wake(1000.0)
    assert rounds > 1
    assert not state.cursors.of_lane


def test_lanes_without_capacity_are_backed_off(state: LaneState) -> None:
    state.found(A, B)
    state.backlog.back_off([A], 3.0)
    assert state.planned == [B]
    state.backlog.wake(2.9)
    assert state.planned == [B]
    state.backlog.wake(3.0)
    assert state.planned == [B, A]


def test_lanes_that_were_rewound_are_open(state: LaneState) -> None:
    state.found(A, B, at=9.0)
    state.empty(Lane("q", "2", 0))
    state.backlog.open_again(state.cursors.of_lane, 1.0)
    assert set(state.planned) == {A, B}
