"""No job is missed: cursors and catch-ups against a model of the database, and each part of the protocol left out in turn.

The model has transactions, snapshots, row locks, ordering keys, lanes that come and pause, and a clock that may step
back. Its `_claim` and `_catch_up` do what the two statements have to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.claim_protocol import Cursors, Found, Lane, Segment, Snapshot

KNOWN = [Lane("a", "", 5), Lane("b", "", 5), Lane("a", "", 0)]
LANES = [*KNOWN, Lane("a", "42", 0)]
MOST = 5
"""Rows that one catch-up returns."""


@dataclass(eq=False)
class Row:
    """The committed state of a job."""

    lane: Lane
    at: datetime
    id: int
    xid: int
    ordering_key: str | None = None
    status: str = "pending"
    released_key: bool = False
    locked_by: int | None = None
    skipped: bool = False
    """A claim skipped it because it was locked, since the cursors were last reset."""


@dataclass
class Transaction:
    """What becomes true when it commits."""

    rows: list[Row] = field(default_factory=list)
    changes: list[tuple[Row, dict[str, Any]]] = field(default_factory=list)


class Queue(RuleBasedStateMachine):
    """One worker's cursors, and everything that others do. `left_out`: a part of the protocol that is missing."""

    left_out = ""

    @initialize()
    def start(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.next_xid = 10
        self.open: dict[int, Transaction] = {}
        self.rows: list[Row] = []
        self.ids: set[int] = set()
        self.cursors = Cursors(KNOWN, 0)

    # What others do.

    @rule()
    def begin(self) -> None:
        self.open[self._new_xid()] = Transaction()

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        lane=st.sampled_from(LANES),
        offset=st.integers(-20, 3),
        job_id=st.integers(1, 60),
        key=st.sampled_from([None, None, "k"]),
    )
    def insert(self, data: st.DataObject, lane: Lane, offset: int, job_id: int, key: str | None) -> None:
        if job_id not in self.ids:
            self.ids.add(job_id)
            xid = data.draw(st.sampled_from(sorted(self.open)))
            self.open[xid].rows.append(Row(lane, self.now + timedelta(seconds=offset), job_id, xid, key))

    @precondition(lambda self: self.open and self._of("pending"))
    @rule(data=st.data(), lane=st.sampled_from(LANES), offset=st.integers(-20, 3))
    def move(self, data: st.DataObject, lane: Lane, offset: int) -> None:
        """Change queue, fairness key, priority or time of a pending job."""
        row = data.draw(st.sampled_from(self._of("pending")))
        self._change(data, row, lane=lane, at=self.now + timedelta(seconds=offset))

    @precondition(lambda self: self.open and self._of("running"))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Complete a job in an open transaction, as a handler's own session does."""
        self._change(data, data.draw(st.sampled_from(self._of("running"))), status="completed", released_key=True)

    @precondition(lambda self: self.open and self._of("running"))
    @rule(data=st.data(), offset=st.integers(-20, 3))
    def retry(self, data: st.DataObject, offset: int) -> None:
        row = data.draw(st.sampled_from(self._of("running")))
        self._change(data, row, status="pending", at=self.now + timedelta(seconds=offset), released_key=True)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:
        self._end([data.draw(st.sampled_from(sorted(self.open)))], commits=commits)

    @rule(seconds=st.integers(-3, 6))
    def tick(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    # What the worker does.

    @rule(
        limit=st.integers(1, 6),
        quotas=st.tuples(st.integers(0, 4), st.integers(0, 4)),
        most_late=st.integers(0, 3),
        paused=st.sampled_from([None, "a", "b"]),
    )
    def claim(self, limit: int, quotas: tuple[int, int], most_late: int, paused: str | None) -> None:
        """Claim by queue, each up to its quota; a paused one is not passed in."""
        if self.cursors.needs_catch_up:
            self._catch_up()
        segments = [
            Segment(lanes, quota)
            for queue, quota in zip("ab", quotas, strict=True)
            if queue != paused and (lanes := self._known(queue))
        ]
        self._claim(segments, limit, most_late)

    @rule()
    def catch_up(self) -> None:
        self._catch_up()

    @rule(limit=st.integers(1, 4), commits=st.booleans())
    def both_in_one_round_trip(self, limit: int, commits: bool) -> None:
        """Send a catch-up and a claim at once: both are given the cursors from before, so the catch-up goes first."""
        between = list(self.open) if commits else []
        if self.cursors.needs_catch_up:
            self._catch_up()
        before = dict(self.cursors.of_lane)
        if self.left_out == "the catch-up goes first":
            self._claim([Segment(self._known(), limit)], limit, 0)
            self._end(between)
            self._catch_up(before)
        else:
            self._catch_up(before)
            self._end(between)
            self._claim([Segment(self._known(), limit)], limit, 0)

    @rule()
    def lose_an_answer(self) -> None:
        self._reset()

    @rule(limit=st.integers(1, 4))
    def drain(self, limit: int) -> None:
        """Claim until idle: nothing is left that could be started."""
        self._drain(limit)
        assert not [row for row in self._startable() if not row.skipped]

    @rule(limit=st.integers(1, 4))
    def drain_after_a_reset(self, limit: int) -> None:
        """The periodic reset finds what was skipped while it was locked."""
        if self.left_out != "the periodic reset":
            self._reset()
        self._drain(limit)
        assert not self._startable()

    @invariant()
    def no_two_of_a_key_run(self) -> None:
        if hasattr(self, "rows"):
            assert sum(row.ordering_key is not None for row in self._of("running")) <= 1

    # The two statements.

    def _catch_up(self, cursors: dict[Lane, tuple[datetime, Any]] | None = None) -> None:
        cursors = self.cursors.of_lane if cursors is None else cursors
        watermark = self.cursors.watermark

        def is_new(row: Row) -> bool:
            in_progress = row.xid in watermark.in_progress and self.left_out != "transactions in progress"
            return in_progress or (row.xid >= watermark.xmax and self.left_out != "transactions since")

        rows = [row for row in self._of("pending") if is_new(row)]
        if self.left_out != "released ordering keys":
            released = {row.ordering_key for row in self.rows if row.released_key and is_new(row)} - {None}
            rows += [first for key in released if (first := self._first(key)) is not None and first not in rows]
        if watermark == Snapshot(2**64 - 1, frozenset()):
            # The first one: which lanes there are, for no transaction precedes it.
            rows = [row for row in self._of("pending") if row.lane not in cursors]
        if self.left_out == "new lanes":
            rows = [row for row in rows if row.lane in cursors]
        start = (datetime.max.replace(tzinfo=UTC), 0)
        found = [Found(row.lane, row.at, row.id) for row in rows if (row.at, row.id) <= cursors.get(row.lane, start)]
        # Lanes are told apart from jobs: a flood of jobs behind one cursor does not hide a lane.
        of_new = {job.lane: job for job in found if job.lane not in cursors}
        late = [job for job in found if job.lane in cursors]
        is_cut = len(late) >= MOST
        self.cursors.caught_up(
            [*of_new.values(), *late[:MOST]],
            is_cut=is_cut and self.left_out != "the answer to a flood",
            now=self._clock(),
            snapshot=Snapshot(self.next_xid, frozenset(self.open)),
        )
        if is_cut:
            self._note_reset()

    def _claim(self, segments: list[Segment], limit: int, most_late: int) -> int:
        late = self.cursors.late([lane for segment in segments for lane in segment.lanes], min(most_late, limit))
        if self.left_out == "late arrivals without capacity":
            everything = self.cursors.late(list(self.cursors.of_lane), len(self.rows))
        by_id = [row for row in self.rows if row.id in late]
        picked = self._lock(by_id, limit)
        for segment in segments:
            most = min(limit, len(picked) + segment.quota)
            for lane in segment.lanes:
                if len(picked) < most:
                    ahead = [
                        row
                        for row in self.rows
                        if row.lane == lane
                        and (row.at, row.id) > self.cursors.of_lane[lane]
                        # A row that this statement has locked is not skipped: it would count twice to the limit.
                        and (row.id not in late or self.left_out == "late arrivals are not scanned")
                    ]
                    picked += self._lock(sorted(ahead, key=lambda row: (row.at, row.id)), most - len(picked))
        taken = self._start(picked)
        self._new_xid()
        self.cursors.claimed(
            [Found(row.lane, row.at, row.id) for row in taken],
            segments,
            everything if self.left_out == "late arrivals without capacity" else late,
            limit=limit,
            now=self._clock(),
        )
        return len(taken)

    def _start(self, picked: list[Row]) -> list[Row]:
        taken: list[Row] = []
        for row in dict.fromkeys(picked):
            row.status, row.released_key = "running", False
            taken.append(row)
        return taken

    def _lock(self, rows: Iterable[Row], limit: int) -> list[Row]:
        locked: list[Row] = []
        for row in rows:
            if len(locked) == limit:
                break
            if not self._is_eligible(row):
                continue
            if row.locked_by is None:
                locked.append(row)
            else:
                row.skipped = True
        return locked

    def _drain(self, limit: int) -> None:
        for _ in range(3 * len(self.rows) + 6):
            self._catch_up()
            if not self._claim([Segment(self._known(), limit)], limit, limit) and not self.cursors.late(LANES, 1):
                return
        raise AssertionError("claims found jobs more often than there are jobs")

    # The database.

    def _end(self, xids: Iterable[int], *, commits: bool = True) -> None:
        for xid in xids:
            transaction = self.open.pop(xid)
            for row, values in transaction.changes:
                row.locked_by = None
                if commits:
                    row.xid, row.skipped = xid, False
                    for name, value in values.items():
                        setattr(row, name, value)
            if commits:
                self.rows += transaction.rows

    def _change(self, data: st.DataObject, row: Row, **values: Any) -> None:
        if row.locked_by is None:
            row.locked_by = xid = data.draw(st.sampled_from(sorted(self.open)))
            self.open[xid].changes.append((row, values))

    def _clock(self) -> datetime:
        return max(self.now, self.cursors._database_now) if self.left_out == "the clock" else self.now

    def _is_eligible(self, row: Row) -> bool:
        return (
            row.status == "pending"
            and row.at <= self.now
            and (row.ordering_key is None or self._first(row.ordering_key) is row)
        )

    def _first(self, key: str | None) -> Row | None:
        """Return the next job of an ordering key, if none is running."""
        of_key = [row for row in self.rows if row.ordering_key == key]
        waiting = [row for row in of_key if row.status == "pending"]
        return None if any(row.status == "running" for row in of_key) else min(waiting, key=lambda row: row.id, default=None)

    def _known(self, queue: str | None = None) -> list[Lane]:
        return [lane for lane in self.cursors.of_lane if queue in (None, lane.queue)]

    def _of(self, status: str) -> list[Row]:
        return [row for row in self.rows if row.status == status]

    def _startable(self) -> list[Row]:
        return [row for row in self.rows if self._is_eligible(row) and row.locked_by is None]

    def _reset(self) -> None:
        self.cursors.reset()
        self._note_reset()

    def _note_reset(self) -> None:
        for row in self.rows:
            row.skipped = False

    def _new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1


Queue.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestNoJobIsMissed = Queue.TestCase


A, B, LOW, NEW = *KNOWN, LANES[3]


class Story:
    """A few steps of the model by hand, without Hypothesis."""

    def __init__(self, part: str) -> None:
        self.queue = Queue()
        self.queue.left_out = part
        self.queue.start()

    def add(self, *lanes: Lane, ago: int = 5, key: str | None = None, commits: bool = True) -> list[Row]:
        queue, xid = self.queue, self.queue._new_xid()
        first, at = len(queue.ids) + 1, queue.now - timedelta(seconds=ago)
        rows = [Row(lane, at, job_id, xid, key) for job_id, lane in enumerate(lanes, first)]
        queue.ids |= {row.id for row in rows}
        queue.open[xid] = Transaction(rows)
        if commits:
            queue._end([xid])
        return rows

    def change(self, row: Row, **values: Any) -> int:
        xid = row.locked_by = self.queue._new_xid()
        self.queue.open[xid] = Transaction(changes=[(row, values)])
        return xid

    def claim(self, *lanes: Lane, limit: int = 4, late: int = 0) -> None:
        self.queue._claim([Segment(lanes or self.queue._known(), limit)], limit, late)

    def work(self) -> None:
        """Catch up and claim what there is: the cursors are at the present afterwards."""
        self.queue._catch_up()
        self.claim()


def in_progress(story: Story) -> None:
    story.add(A, commits=False)
    story.work()
    story.queue._end(list(story.queue.open))


def since(story: Story) -> None:
    story.work()
    story.add(A)


def released(story: Story) -> None:
    first, _ = story.add(A, A, key="k")
    story.work()
    story.queue._end([story.change(first, status="completed", released_key=True)])


def new_lane(story: Story) -> None:
    story.work()
    story.add(NEW)


def flood(story: Story) -> None:
    story.work()
    story.add(*[A] * (MOST + 1))


def without_capacity(story: Story) -> None:
    story.work()
    story.add(A)
    story.queue._catch_up()
    story.claim(B)


def scanned_too(story: Story) -> None:
    story.work()
    (late,) = story.add(A)
    story.queue._catch_up()
    story.queue._end([story.change(late, lane=B, at=story.queue.now + timedelta(seconds=1))])
    story.add(B, ago=-2)
    story.queue.tick(seconds=3)
    story.queue._catch_up()
    story.claim(limit=2, late=1)


def one_round_trip(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=3)
    story.add(A, ago=1, commits=False)
    story.queue.both_in_one_round_trip(limit=1, commits=True)


def clock(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=-10)
    story.add(A, ago=-5)
    story.queue._catch_up()
    story.claim(late=1)
    story.queue.tick(seconds=10)


def skipped(story: Story) -> None:
    (row,) = story.add(A)
    xid = story.change(row)
    story.work()
    story.queue._end([xid], commits=False)


PARTS = {
    "transactions in progress": in_progress,
    "transactions since": since,
    "released ordering keys": released,
    "new lanes": new_lane,
    "the answer to a flood": flood,
    "late arrivals without capacity": without_capacity,
    "late arrivals are not scanned": scanned_too,
    "the catch-up goes first": one_round_trip,
    "the clock": clock,
    "the periodic reset": skipped,
}


def left_after(part: str, left_out: str) -> list[Row]:
    story = Story(left_out)
    PARTS[part](story)
    if part == "the periodic reset" and left_out != part:
        story.queue._reset()
    story.queue._drain(4)
    return story.queue._startable()


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_needed(part: str) -> None:
    assert not left_after(part, left_out="")
    assert left_after(part, left_out=part)
