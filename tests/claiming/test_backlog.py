"""Which lanes a worker claims from: they open, are read to their end, linger and are forgotten."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sa_jobqueue.worker.claim.backlog import LINGER, LINGERING, Backlog
from sa_jobqueue.worker.claim.cursors import Cursors, Lane

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = Lane("q", "", 0), Lane("q", "1", 0)


class Known:
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
def known() -> Known:
    return Known()


def test_a_lane_is_planned_from_its_first_due_job_until_a_claim_drains_it(known: Known) -> None:
    known.found(A, A)
    assert known.planned == [A]
    known.backlog.read_to_end([A, A], 1.0)
    assert known.planned == []
    assert known.backlog.asks() == [A]


def test_a_lane_with_unclaimed_late_arrivals_stays_open(known: Known) -> None:
    known.found(A)
    known.cursors.late[A] = {1: "7"}
    known.backlog.read_to_end([A], 1.0)
    assert known.planned == [A]
    assert known.backlog.asks() == []


def test_a_lane_with_unclaimed_late_arrivals_keeps_no_other_lane_open(known: Known) -> None:
    known.found(A, B)
    known.cursors.late[A] = {1: "7"}
    known.backlog.read_to_end([A, B], 1.0)
    assert known.planned == [A]


def test_a_lane_opens_when_its_next_scheduled_job_becomes_due(known: Known) -> None:
    known.found(A)
    known.backlog.read_to_end([A], 0.0)
    known.found(A, at=9.0, now=1.0)
    known.backlog.answered([A])
    assert known.backlog.next_at == 9.0
    known.backlog.wake(8.9)
    assert known.planned == []
    assert A in known.cursors.of_lane
    known.backlog.wake(9.0)
    assert known.planned == [A]
    assert known.backlog.next_at is None


def test_an_earlier_job_opens_a_lane_earlier_and_a_later_one_does_not_delay_it(known: Known) -> None:
    known.found(A, at=9.0)
    known.found(A, at=5.0)
    known.found(A, at=7.0)
    assert known.backlog.next_at == 5.0
    known.found(A, at=1.0, now=1.0)
    assert known.planned == [A]
    assert not known.backlog._opens_at
    known.backlog.wake(9.0)
    assert known.planned == [A]


def test_an_empty_lane_lingers_and_is_then_removed(known: Known) -> None:
    known.found(A)
    known.empty(A, now=1.0)
    known.backlog.wake(1.0 + LINGER - 0.1)
    assert A in known.cursors.of_lane
    known.backlog.wake(1.0 + LINGER)
    assert A not in known.cursors.of_lane
    assert not known.backlog.open_lingering()
    known.found(A, now=9.0)
    assert known.planned == [A]


def test_only_the_last_few_lanes_linger(known: Known) -> None:
    lanes = [Lane("q", str(number), 0) for number in range(3 * LINGERING)]
    known.found(*lanes)
    known.empty(*lanes)
    known.backlog.wake(0.0)
    assert list(known.cursors.of_lane) == lanes[-LINGERING:]


def test_a_woken_worker_scans_recently_emptied_lanes(known: Known) -> None:
    known.found(A, B)
    known.empty(A)
    known.backlog.read_to_end([B], 0.0)
    assert known.backlog.open_lingering()
    assert known.planned == [A, B]
    known.backlog.wake(9.0)
    assert set(known.cursors.of_lane) == {A, B}


def test_a_woken_worker_scans_a_bounded_number_of_lanes_with_unknown_next_job(known: Known) -> None:
    lanes = [Lane("q", str(number), 0) for number in range(3 * LINGERING)]
    known.found(*lanes)
    known.backlog.read_to_end(lanes, 0.0)
    assert known.backlog.open_lingering()
    assert known.planned == lanes[:LINGERING]


def test_a_lane_is_not_removed_before_its_next_job_was_queried(known: Known) -> None:
    lanes = [Lane("q", str(number), 0) for number in range(1000)]
    known.found(*lanes)
    known.backlog.read_to_end(lanes, 0.0)
    known.backlog.wake(1000.0)
    assert set(known.cursors.of_lane) == set(lanes)
    rounds = 0
    while asked := known.backlog.asks():
        known.backlog.answered(asked)
        assert len(asked) < 500
        rounds += 1
    known.backlog.wake(1000.0)
    assert rounds > 1
    assert not known.cursors.of_lane


def test_lanes_without_capacity_are_backed_off(known: Known) -> None:
    known.found(A, B)
    known.backlog.back_off([A], 3.0)
    assert known.planned == [B]
    known.backlog.wake(2.9)
    assert known.planned == [B]
    known.backlog.wake(3.0)
    assert known.planned == [B, A]


def test_lanes_that_were_rewound_are_open(known: Known) -> None:
    known.found(A, B, at=9.0)
    known.empty(Lane("q", "2", 0))
    known.backlog.open_again(known.cursors.of_lane, 1.0)
    assert set(known.planned) == {A, B}
