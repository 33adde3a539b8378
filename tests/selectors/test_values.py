"""A queue with a selector: offered, held and started jobs. The model of the database is that of the claim protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from sa_jobqueue import Job
from sa_jobqueue.registry import Candidate
from sa_jobqueue.registry.selectors import Selector
from sa_jobqueue.statements.claims import CANDIDATE
from sa_jobqueue.worker.claim.cursors import Lane, Plan, Segment
from sa_jobqueue.worker.claim.lanes import Lanes
from sa_jobqueue.worker.claim.selectors import Selection
from tests.fixtures.claim_protocol import LANES, LOW, OWN, PARTITIONS, SHARED, A, Partition, Queue, Row, Story, run

pytestmark = pytest.mark.usefixtures("small_bounds")

WINDOW = 4
Choose = Callable[[Sequence[Candidate]], Sequence[Candidate]]


def every(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    return candidates


def odd(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    return [candidate for candidate in candidates if cast("int", candidate.id) % 2]


def none(_candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    return []


class Choosing(Queue):
    """One worker whose jobs are all chosen by a selector, and everybody else."""

    @initialize()
    def start(self) -> None:
        super().start()
        self.offered: Sequence[Candidate] = ()
        self.chosen: Choose = odd
        selector = Selector(queue="a", choose=lambda offered, free: offered, window=WINDOW)
        self.selection = Selection(selector, Job, "tester", cast("Any", None))
        self.selection._call = self._choose  # type: ignore[assignment,method-assign]
        self.selection._statement = cast("Any", SimpleNamespace(execute=self._candidates))
        self.lanes = object.__new__(Lanes)
        self.lanes.cursors, self.lanes.backlog, self.lanes.arrivals = self.cursors, self.backlog, self.arrivals
        self.lanes.clock = lambda: self.monotonic
        self.lanes.planner = cast("Any", SimpleNamespace(charge=lambda shares, started: None))

    def _claim(
        self,
        quotas: Mapping[Partition, int],
        limit: int,
        most_late: int,
        *,
        lanes: Collection[Lane] = LANES,
        is_split: bool = False,
    ) -> int:
        """Offer, choose, claim, as the claimer does."""
        by_priority = sorted(self.cursors.late, key=lambda lane: -lane.priority)
        late = dict([late_job for lane in by_priority for late_job in self.cursors.late[lane].items()][:WINDOW])
        capacity = WINDOW - len(late)
        plan = self._plan(dict.fromkeys(quotas, capacity), capacity, 0, lanes, is_split)._replace(late=late, limit=WINDOW)
        candidates, at = run(self.selection.read(cast("Any", None), self.cursors.parameters(plan, self.excluded)))
        assert {candidate.id for candidate, _ in candidates} <= {
            row.id for row in self.rows if self._is_eligible(row)
        } - self.excluded
        assert len(candidates) <= WINDOW
        self.lanes.offered(plan, candidates, at)
        chosen = run(self.selection.choose([candidate for candidate, _ in candidates], limit, self.monotonic))
        xids = {candidate.id: xid for candidate, xid in candidates}
        by_id = Plan([Segment([], 0, [SHARED, OWN])], {candidate.id: xids[candidate.id] for candidate in chosen}, limit)
        jobs = self._claimed(self.cursors.parameters(by_id, self.excluded))
        self.lanes.chosen({}, cast("Any", jobs))
        return len(jobs)

    def _drain(self, limit: int) -> None:
        """Start whatever is offered."""
        self.chosen = every
        super()._drain(limit)
        self.chosen = odd

    async def _choose(self, candidates: Sequence[Candidate], _free: int, _now: float) -> Sequence[Candidate]:
        self.offered = candidates
        return self.chosen(candidates)

    async def _candidates(self, _connection: Any, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Answer as `candidates`."""
        rows = self._find(parameters, locks=False)
        assert len(set(rows)) == len(rows)
        return [(self.now, str(row.xid), *_columns_of(row)) for row in rows] or [(self.now, None, *[None] * len(CANDIDATE))]


def _columns_of(row: Row) -> tuple[Any, ...]:
    lane = row.lane
    return row.id, row.type_name, *lane[:2], lane.priority, row.id, 0, None, row.scheduled_at, 0, None, None, None


@pytest.mark.parametrize("histories", [30, pytest.param(1500, marks=pytest.mark.long)])
def test_the_selector_protocol_skips_no_job(histories: int) -> None:
    """The same histories in every run; many, and new ones, in the long run."""
    few = histories < 1000
    chosen = settings(max_examples=histories, stateful_step_count=50, deadline=None, derandomize=few, database=None)
    run_state_machine_as_test(Choosing, settings=chosen)


class Chosen(Story):
    """A few steps by hand."""

    queue: Choosing

    def __init__(self, chosen: Choose = every) -> None:
        self.queue = Choosing()
        self.queue.start()
        self.queue.chosen = chosen

    def offer(self, limit: int = 1) -> list[int]:
        """Claim once, after a full scan where none was; return the ids that were offered, in order."""
        self.queue.offered = ()
        if self.queue.cursors.watermark is None:
            self.full_scan()
        self.queue._claim(dict.fromkeys(PARTITIONS, limit), limit, limit)
        offered: Sequence[Any] = self.queue.offered
        return [candidate.id for candidate in offered]


def test_unselected_candidates_are_offered_again_without_being_read_again() -> None:
    story = Chosen()
    rows = story.add(*[A] * 10)
    assert story.offer() == [1, 2, 3, 4]
    assert story.offer(limit=2) == [2, 3, 4, 5]
    assert story.offer() == [4, 5, 6, 7]
    assert [row.id for row in rows if row.status == "running"] == [1, 2, 3, 4]
    assert story.queue.cursors.of_lane[A][1] == 7


def test_candidates_that_others_claimed_or_changed_are_dropped() -> None:
    story = Chosen(none)
    first, second, *_ = story.add(*[A] * 4)
    story.offer()
    first.status, first.xid = "running", story.queue._new_xid()
    story.queue._end([story.change(second, lane=LOW)])
    assert story.offer() == [3, 4]
    story.catch_up()
    assert story.offer() == [3, 4, 2]


def test_a_window_of_unselected_jobs_hides_others_until_the_next_full_scan() -> None:
    story = Chosen(none)
    story.add(*[LOW] * WINDOW)
    assert story.offer() == [1, 2, 3, 4]
    (high,) = story.add(A)
    story.catch_up()
    assert story.offer() == [1, 2, 3, 4]
    story.full_scan()
    assert story.offer() == [high.id, 1, 2, 3]


def test_quarantined_jobs_are_not_offered() -> None:
    story = Chosen(none)
    story.add(*[A] * 3)
    story.offer()
    story.queue.excluded.add(2)
    assert story.offer() == [1, 3]


def test_candidates_past_max_wait_start_before_selected_ones() -> None:
    story = Chosen(lambda candidates: [candidate for candidate in candidates if cast("int", candidate.id) > 2])
    rows = story.add(*[A] * 2)
    selection = story.queue.selection
    selection._selector = replace(selection._selector, max_wait=timedelta(seconds=10))
    story.offer()
    story.add(*[A] * 2, ago=1)
    story.catch_up()
    story.queue.monotonic += 9.9
    story.offer()
    assert [row.status for row in rows] == ["pending"] * 2
    story.queue.monotonic += 0.2
    story.offer(limit=1)
    assert [row.status for row in rows] == ["running", "pending"]
