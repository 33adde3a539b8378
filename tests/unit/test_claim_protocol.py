"""No job is missed: a worker's cursors, backlog and catch-ups against a model of the database; each part left out in turn.

The parts are the worker's own; the model answers the statements `claim`, `catch_up` and `full_scan` as documented. It has
transactions, snapshots, row locks, ordering keys, lanes that come and go, jobs in quarantine, other workers, and a clock
that may step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sa_jobqueue import Job
from sa_jobqueue.worker.claim import arrivals, backlog, cursors
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.backlog import LINGER, Backlog
from sa_jobqueue.worker.claim.cursors import Allocation, Cursors, Lane, Plan, Segment

SHARED, OWN = "shared", "own"
LANES = [Lane("a", "", 5), Lane("b", "", 5), Lane("a", "", 0), Lane("a", "42", 0), Lane("a", "", 0, OWN)]
A, B, LOW, NEW, OF_OWN = LANES
Partition = tuple[str, str]
PARTITIONS: Final[list[Partition]] = [("a", ""), ("b", ""), ("a", OWN)]
MOST: Final = 5
"""Rows that one catch-up looks at."""
FLOOD: Final = 3
T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Make every bound so small that a few lanes and jobs exceed it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "FLOOD", FLOOD)
        patch.setattr(arrivals, "_PAGE", 2)
        patch.setattr(arrivals, "_KNOWN", 2)
        patch.setattr(backlog, "_ASKED", 2)
        patch.setattr(backlog, "LINGERING", 2)
        yield


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    raise AssertionError("it waited")


@dataclass(eq=False)
class Row:
    """The committed state of a job."""

    lane: Lane
    scheduled_at: datetime
    id: int
    xid: int
    ordering_key: str | None = None
    status: str = "pending"
    released_key: bool = False
    locked_by: int | None = None
    skipped: bool = False
    """A claim skipped it because it was locked, since its lane was last scanned in full."""

    @property
    def queue(self) -> str:
        return self.lane.queue

    @property
    def fairness_key(self) -> str:
        return self.lane.fairness_key

    @property
    def priority(self) -> int:
        return self.lane.priority

    @property
    def type_name(self) -> str:
        return self.lane.type_name or SHARED

    @property
    def key(self) -> tuple[datetime, int]:
        return self.scheduled_at, self.id


@dataclass
class Transaction:
    """What becomes true when it commits."""

    rows: list[Row] = field(default_factory=list)
    changes: list[tuple[Row, dict[str, Any]]] = field(default_factory=list)


class _Arrivals(Arrivals):
    """The worker's, except that full scans come when the test says so, not with the time."""

    without_floods = False

    def _next_full_scan(self) -> float:
        return self._full_scan_at

    async def catch_up(self, connection: Any) -> None:
        before = self._full_scan_at
        await super().catch_up(connection)
        if self.without_floods:
            self._full_scan_at = before


class Queue(RuleBasedStateMachine):
    """One worker, and everything that others do. `left_out`: a part of the protocol that is missing."""

    left_out = ""

    @initialize()
    def start(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.monotonic = 100.0
        self.next_xid = 10
        self.open: dict[int, Transaction] = {}
        self.rows: list[Row] = []
        self.ids: set[int] = set()
        self.excluded: set[int] = set()
        self.taken_without_capacity: list[Row] = []
        self.had: set[Lane] = set()
        self.between_statements: Callable[[], None] = lambda: None
        self.cursors = Cursors([OWN], 0)
        planned: dict[Lane, None] = {}
        self.planned = planned
        self.backlog = Backlog(self.cursors, lambda lane: planned.update({lane: None}), planned.pop)
        if self.left_out == "a job scheduled for later":
            found = self.backlog.found
            self.backlog.found = lambda lane, at, now: found(lane, at, now) if at <= now else None  # type: ignore[method-assign]
        partitions = SimpleNamespace(
            own_types={OWN},
            of_lane=lambda lane: (lane.queue, lane.type_name) if (lane.queue, lane.type_name) in PARTITIONS else None,
            lanes=lambda queue, key, priority: [Lane(queue, key, priority, name) for of, name in PARTITIONS if of == queue],
        )
        self.arrivals = _Arrivals(
            Job,
            cast("Any", partitions),
            self.cursors,
            self.backlog,
            queues=["a", "b"],
            types=[SHARED, OWN],
            clock=lambda: self.monotonic,
        )
        self.arrivals.without_floods = self.left_out == "a full scan after a flood"
        self.arrivals._catch_up = cast("Any", SimpleNamespace(execute=self._caught_up))
        self.arrivals._full_scan = cast("Any", SimpleNamespace(execute=self._scan))

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
        """Few instants and ids, so that keys collide and interleave."""
        if job_id not in self.ids:
            self.ids.add(job_id)
            xid = data.draw(st.sampled_from(sorted(self.open)))
            self.open[xid].rows.append(Row(lane, self.now + timedelta(seconds=offset), job_id, xid, key))

    @precondition(lambda self: self.open and self._of("pending"))
    @rule(data=st.data(), lane=st.sampled_from(LANES), offset=st.integers(-20, 3))
    def move(self, data: st.DataObject, lane: Lane, offset: int) -> None:
        """Change queue, fairness key, priority or time of a pending job."""
        row = data.draw(st.sampled_from(self._of("pending")))
        self._change(data, row, lane=lane, scheduled_at=self.now + timedelta(seconds=offset))

    @precondition(lambda self: self.open and self._of("running"))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Complete a job in an open transaction, as a handler's own session does."""
        self._change(data, data.draw(st.sampled_from(self._of("running"))), status="completed", released_key=True)

    @precondition(lambda self: self.open and self._of("running"))
    @rule(data=st.data(), offset=st.integers(-20, 3))
    def retry(self, data: st.DataObject, offset: int) -> None:
        row = data.draw(st.sampled_from(self._of("running")))
        at = self.now + timedelta(seconds=offset)
        self._change(data, row, status="pending", scheduled_at=at, released_key=True)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:
        self._end([data.draw(st.sampled_from(sorted(self.open)))], commits=commits)

    @precondition(lambda self: self._startable())
    @rule(data=st.data())
    def start_elsewhere(self, data: st.DataObject) -> None:
        """Another worker starts a job."""
        row = data.draw(st.sampled_from(self._startable()))
        row.status, row.released_key, row.xid = "running", False, self._new_xid()

    @rule(seconds=st.integers(-3, 6))
    def tick(self, seconds: int) -> None:
        """Let time pass; the database's clock may step back, the process's never does."""
        self.now += timedelta(seconds=seconds)
        self.monotonic += max(seconds, 0)

    @rule(seconds=st.integers(2, 6))
    def step(self, seconds: int) -> None:
        """Have the database's clock step forward."""
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: self._startable())
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """Put a job in quarantine, as the database refuses to start it."""
        self.excluded.add(data.draw(st.sampled_from(self._startable())).id)

    @rule()
    def try_again(self) -> None:
        """Let what is in quarantine be claimed again."""
        if self.excluded and self.left_out != "a full scan after quarantine":
            self.arrivals.request_full_scan()
        self.excluded.clear()

    # What the worker does.

    @rule(
        limit=st.integers(1, 6),
        quotas=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
        most_late=st.integers(0, 3),
        is_split=st.booleans(),
    )
    def claim(self, limit: int, quotas: tuple[int, int, int], most_late: int, is_split: bool) -> None:
        """Claim for partitions, each up to its quota; one without capacity is left out."""
        self._claim(dict(zip(PARTITIONS, quotas, strict=True)), limit, most_late, is_split=is_split)

    @rule()
    def keep_up(self) -> None:
        self.monotonic += 0.1
        self.backlog.wake(self.monotonic)
        run(self.arrivals.keep_up(cast("Any", None)))

    @rule()
    def ask(self) -> None:
        run(self.arrivals.ask(cast("Any", None)))

    @rule()
    def hear(self) -> None:
        """Be woken by a notification."""
        self.backlog.open_lingering()

    @rule(seconds=st.floats(0.1, 3))
    def back_off(self, seconds: float) -> None:
        """Plan the lanes of a queue no more for a while, as their fairness key has no capacity."""
        self.backlog.back_off([lane for lane in list(self.backlog.open) if lane.queue == "b"], self.monotonic + seconds)

    @rule()
    def request_full_scan(self) -> None:
        self.arrivals.request_full_scan()

    @rule()
    def lose_everything(self) -> None:
        """Begin anew with another connection."""
        excluded, had = self.excluded, (self.open, self.rows, self.ids, self.now, self.next_xid, self.monotonic)
        self.start()
        self.open, self.rows, self.ids, self.now, self.next_xid, self.monotonic = had
        self.excluded = excluded

    @rule(limit=st.integers(1, 4))
    def drain(self, limit: int) -> None:
        """Claim until idle: nothing is left that could be started."""
        self._drain(limit)
        back_off = self.backlog._opens_at
        assert not [row for row in self._startable() if not row.skipped and not (row.queue == "b" and row.lane in back_off)]

    @rule(limit=st.integers(1, 4))
    def drain_after_a_full_scan(self, limit: int) -> None:
        """The periodic full scan finds what was skipped while it was locked."""
        self.arrivals.request_full_scan()
        self._drain(limit)
        assert not self._startable()

    # What is always true.

    @invariant()
    def no_two_of_a_key_run(self) -> None:
        if hasattr(self, "rows"):
            assert sum(row.ordering_key is not None for row in self._of("running")) <= 1

    @invariant()
    def nothing_is_taken_without_capacity(self) -> None:
        if hasattr(self, "rows"):
            assert not self.taken_without_capacity

    @invariant()
    def each_lane_is_in_one_state_at_least(self) -> None:
        """Open lanes are what is planned and have cursors; a lane that has a cursor is never out of sight."""
        if hasattr(self, "rows"):
            closed = {*self.backlog._ended, *self.backlog._lingering, *self.backlog._opens_at}
            assert self.backlog.open.keys() == self.planned.keys()
            assert {*self.backlog.open, *closed} == set(self.cursors.of_lane)
            assert not closed & self.backlog.open.keys()
            assert not self.backlog._lingering.keys() & {*self.backlog._ended, *self.backlog._opens_at}

    # The worker's steps.

    def _claim(
        self,
        quotas: Mapping[Partition, int],
        limit: int,
        most_late: int,
        *,
        lanes: Collection[Lane] = LANES,
        is_split: bool = False,
    ) -> int:
        plan = self._plan(quotas, limit, most_late, lanes, is_split)
        if not plan.allocations:
            return 0
        jobs = self._claimed(self.cursors.parameters(plan, self.excluded))
        capable = [lane for allocation in plan.allocations for segment in allocation.segments for lane in segment.lanes]
        self.taken_without_capacity += [row for row in jobs if row.lane not in capable]
        ended, started = self.cursors.claimed(plan, cast("Any", jobs), self._clock())
        assert started.total() == len(jobs)
        self.backlog.read_to_end(ended, self.monotonic)
        if self.left_out == "late arrivals without capacity":
            self.cursors.late.clear()
        return len(jobs)

    def _plan(
        self, quotas: Mapping[Partition, int], limit: int, most_late: int, lanes: Collection[Lane], is_split: bool
    ) -> Plan:
        late: dict[Any, str] = {}
        allocations: list[Allocation] = []
        for partition, most in quotas.items():
            of = [lane for lane in self.backlog.open if (lane.queue, lane.type_name) == partition and lane in lanes]
            of.sort(key=lambda lane: -lane.priority)
            quota = min(most, limit)
            if not of or not quota:
                continue
            known = [one for lane in of for one in self.cursors.late.get(lane, {}).items()]
            claimed = dict(known[: max(min(most_late, quota, limit - len(late)), 0)])
            late |= claimed
            quota -= len(claimed)
            segments = [Segment([lane], quota) for lane in of] if is_split else [Segment(of, quota)]
            allocations.append(Allocation([partition[1] or SHARED], quota, segments))
        return Plan(allocations, late, limit)

    def _claim_all(self, limit: int) -> int:
        """Claim for all open lanes, as the claimer does, until no more of them turn out to be empty."""
        while True:
            before = len(self.backlog.open), sum(map(len, self.cursors.late.values()))
            started = self._claim(dict.fromkeys(PARTITIONS, limit), limit, (limit + 1) // 2)
            if started or not self.backlog.open:
                return started
            if (len(self.backlog.open), sum(map(len, self.cursors.late.values()))) >= before:
                return 0

    def _work(self, limit: int) -> int:
        """Claim once as the claimer does; return how many jobs were started."""
        self.monotonic += 0.1
        self.backlog.wake(self.monotonic)
        run(self.arrivals.keep_up(cast("Any", None)))
        started = self._claim_all(limit)
        while started == 0 and self.arrivals.may_have_news:
            run(self.arrivals.ask(cast("Any", None)))
            self.backlog.wake(self.monotonic)
            if self.backlog.open:
                started = self._claim_all(limit)
            if not self.arrivals.is_scanning:
                break
        return started

    def _drain(self, limit: int) -> None:
        idle = 0
        for _ in range(8 * len(self.rows) + 40):
            idle = idle + 1 if self._work(limit) == 0 else 0
            if idle > 1 and not self.arrivals.is_scanning and self.arrivals.full_scan_in() > 0:
                return
        raise AssertionError("claims found jobs more often than there are jobs")

    # The statements.

    def _claimed(self, given: Mapping[str, Any]) -> list[Row]:
        """Start jobs as `claim`."""
        xid = self._new_xid()
        claimed = list(dict.fromkeys(self._find(given)))
        for row in claimed:
            row.status, row.released_key, row.xid = "running", False, xid
        return claimed

    def _find(self, given: Mapping[str, Any], *, locks: bool = True) -> list[Row]:
        """Return the rows that a claim picks, or that are offered to a selector."""
        apart = set(given["apart"])
        if self.left_out == "late arrivals are not scanned":
            # A row that this statement has locked is not skipped: it counts twice to the limit.
            apart -= set(given["late_ids"])
        picked: list[Row] = []
        by_id = {row.id: row for row in self.rows}
        for job_id, xid in zip(given["late_ids"], given["late_xids"], strict=True):
            is_same = str(by_id[job_id].xid) == xid or self.left_out == "late arrivals that have changed"
            if is_same:
                picked += self._lock([by_id[job_id]], given["limit"] - len(picked), [SHARED, OWN], locks=locks)
        names = ("queues", "fairness_keys", "priorities", "cursor_at", "cursor_id")
        lanes = list(zip(*(given[name] for name in names), strict=True))
        segments = list(zip(*(given[f"segment_{name}"] for name in ("first", "last", "quota")), strict=True))
        numbers = ("quota", "first", "last", "first_type", "last_type")
        for quota, first, last, first_type, last_type in zip(*(given[f"partition_{name}"] for name in numbers), strict=True):
            types = given["types"][first_type - 1 : last_type]
            of_partition = min(quota, given["limit"] - len(picked))
            for first_lane, last_lane, most in segments[first - 1 : last]:
                of_segment = min(most, of_partition)
                for queue, key, priority, at, job_id in lanes[first_lane - 1 : last_lane]:
                    ahead = [
                        row
                        for row in self.rows
                        if (row.queue, row.fairness_key, row.priority) == (queue, key, priority)
                        and row.key > (at, job_id)
                        and row.id not in apart
                    ]
                    found = self._lock(sorted(ahead, key=lambda row: row.key), of_segment, types, locks=locks)
                    picked += found
                    of_segment -= len(found)
                    of_partition -= len(found)
        return picked

    async def _caught_up(self, _connection: Any, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Answer as `catch_up`."""
        self.between_statements()
        lanes = self.cursors.of_lane
        self.had |= set(lanes)

        def is_new(row: Row) -> bool:
            in_progress = str(row.xid) in given["xip"] and self.left_out != "transactions in progress"
            return in_progress or (row.xid >= int(given["xmax"]) and self.left_out != "transactions since")

        rows = [row for row in self._of("pending") if is_new(row)]
        if self.left_out != "released ordering keys":
            released = {row.ordering_key for row in self.rows if row.released_key and is_new(row)} - {None}
            rows += [first for key in released if (first := self._first(key)) is not None and first not in rows]
        if self.left_out == "new lanes":
            rows = [row for row in rows if row.lane in lanes]
        if self.left_out == "a lane that was forgotten":
            rows = [row for row in rows if row.lane in lanes or row.lane not in self.had]
        if self.left_out == "late arrivals by id":
            rows = [row for row in rows if row.lane not in lanes or row.key > lanes[row.lane]]
        is_cut = len(rows) >= MOST and self.left_out != "the answer to a flood"
        if is_cut:
            self._note_full_scan(rows=self.rows)
        rows = rows[:MOST]
        known = dict(zip(_given(given, "known"), zip(given["known_at"], given["known_id"], strict=True), strict=True))
        rows = [row for row in rows if row.lane not in known or row.key <= known[row.lane]]
        common = self._clock(), str(self.next_xid), [str(xid) for xid in sorted(self.open)], is_cut
        answer: list[tuple[Any, ...]] = [
            (*common, row.id, *row.lane[:3], row.type_name, row.scheduled_at, str(row.xid), self._wait(row)) for row in rows
        ]
        for lane in _given(given, "ended") if self.left_out != "the next job of a lane" else []:
            of_lane = [row for row in self._of("pending") if row.lane == lane and row.scheduled_at >= given["read_to"]]
            if of_lane:
                first = min(of_lane, key=lambda row: row.key)
                answer.append((*common, None, *lane, first.scheduled_at, None, self._wait(first)))
        if self.left_out == "the answer to a flood of a lane":
            held = {row.lane: row for row in rows if row.lane in lanes}
            answer = [one for one in answer if one[4] is None or not self._is_over(one[4], held)]
        return answer or [(*common, *[None] * 8)]

    def _is_over(self, job_id: int, of_lanes: Collection[Lane]) -> bool:
        """Return whether more late arrivals of its lane came than are kept by id."""
        row = next(row for row in self.rows if row.id == job_id)
        of_lane = [one.id for one in self._of("pending") if one.lane == row.lane]
        return row.lane in of_lanes and of_lane.index(job_id) >= FLOOD

    async def _scan(self, _connection: Any, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Answer as `full_scan`."""
        after = given["after_queue"], given["after_fairness_key"], given["after_priority"]
        firsts: dict[tuple[str, str, int], Row] = {}
        for row in sorted(self._of("pending"), key=lambda row: row.key):
            firsts.setdefault(row.lane[:3], row)
        lanes = sorted(lane for lane in firsts if lane > after)[: given["most"]]
        self._note_full_scan(row for row in self.rows if row.lane[:3] in lanes)
        common = self._clock(), str(self.next_xid), [str(xid) for xid in sorted(self.open)]
        answer = [(*common, *lane, firsts[lane].scheduled_at, self._wait(firsts[lane])) for lane in lanes]
        return answer or [(*common, *[None] * 5)]

    # The database.

    def _lock(self, rows: Iterable[Row], limit: int, types: Sequence[str], *, locks: bool = True) -> list[Row]:
        locked: list[Row] = []
        for row in rows:
            if len(locked) >= limit:
                break
            if not self._is_eligible(row) or row.type_name not in types:
                continue
            if row.locked_by is None or not locks:
                locked.append(row)
            else:
                row.skipped = True
        return locked

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

    def _wait(self, row: Row) -> float:
        return (row.scheduled_at - self.now).total_seconds()

    def _is_eligible(self, row: Row) -> bool:
        return (
            row.status == "pending"
            and row.scheduled_at <= self.now
            and (row.ordering_key is None or self._first(row.ordering_key) is row)
        )

    def _first(self, key: str | None) -> Row | None:
        """Return the next job of an ordering key, if none is running."""
        of_key = [row for row in self.rows if row.ordering_key == key]
        waiting = [row for row in of_key if row.status == "pending"]
        return None if any(row.status == "running" for row in of_key) else min(waiting, key=lambda row: row.id, default=None)

    def _of(self, status: str) -> list[Row]:
        return [row for row in self.rows if row.status == status]

    def _startable(self) -> list[Row]:
        return [row for row in self.rows if self._is_eligible(row) and row.locked_by is None and row.id not in self.excluded]

    def _note_full_scan(self, rows: Iterable[Row]) -> None:
        for row in rows:
            row.skipped = False

    def _new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1


def _given(given: Mapping[str, Any], name: str) -> list[Lane]:
    names = ("queues", "fairness_keys", "priorities", "types")
    return [Lane(*lane) for lane in zip(*(given[f"{name}_{one}"] for one in names), strict=True)]


Queue.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestNoJobIsMissed = Queue.TestCase


class Story:
    """A few steps of the model by hand, without Hypothesis. `part`: what is left out."""

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
        self.queue._claim(dict.fromkeys(PARTITIONS, limit), limit, late, lanes=lanes or LANES)

    def catch_up(self) -> None:
        run(self.queue.arrivals.catch_up(cast("Any", None)))

    def full_scan(self) -> None:
        queue = self.queue
        queue.arrivals.request_full_scan()
        run(queue.arrivals.keep_up(cast("Any", None)))
        while queue.arrivals.is_scanning:
            run(queue.arrivals.ask(cast("Any", None)))

    def work(self) -> None:
        """Start what there is in lanes that have jobs, A and B among them: their cursors are at the present afterwards."""
        self.add(A, B)
        self.queue._drain(4)
        assert {A, B} <= self.queue.cursors.of_lane.keys()


def by_id(story: Story) -> None:
    story.work()
    story.add(A)


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


def forgotten(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=int(LINGER) + 1)
    story.queue._drain(4)
    assert A not in story.queue.cursors.of_lane
    story.add(A)


def flood(story: Story) -> None:
    story.work()
    story.add(*[A] * FLOOD, *[B] * FLOOD)


def flood_before_a_lane(story: Story) -> None:
    story.work()
    story.add(*[A] * FLOOD, *[B] * (MOST - FLOOD))
    story.add(NEW)


def flood_of_a_lane(story: Story) -> None:
    story.work()
    for row in story.queue.rows:
        row.status = "completed"
    story.add(*[A] * (FLOOD + 1))


def without_capacity(story: Story) -> None:
    story.work()
    story.add(A)
    story.catch_up()
    story.add(B)
    story.catch_up()
    story.claim(B)


def changed(story: Story) -> None:
    story.work()
    (late,) = story.add(A)
    story.catch_up()
    story.queue._end([story.change(late, lane=B)])
    story.claim(A, late=1)


def scanned_too(story: Story) -> None:
    story.work()
    story.add(A)
    story.catch_up()
    story.full_scan()  # has the lane scanned from the late arrival on
    story.add(A, ago=1)
    story.catch_up()
    story.claim(A, limit=2, late=1)


def overlapping(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=1)
    story.add(A, ago=0)
    story.catch_up()
    story.queue.tick(seconds=1)
    story.add(A, ago=1, commits=False)

    def between_statements() -> None:
        story.claim()
        story.queue._end(list(story.queue.open))

    if story.queue.left_out == "claims and catch-ups do not overlap":
        story.queue.between_statements = between_statements
        story.catch_up()
        story.queue.between_statements = lambda: None
    else:
        between_statements()
        story.catch_up()


def clock(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=-10)
    story.add(A, ago=-5)
    story.catch_up()
    story.claim(late=1)
    story.queue.step(seconds=10)


def next_job(story: Story) -> None:
    story.add(A, ago=-5)
    story.work()
    story.queue.tick(seconds=6)


def for_later(story: Story) -> None:
    story.work()
    story.add(A, ago=-5)
    story.catch_up()
    story.queue.tick(seconds=6)


def skipped(story: Story) -> None:
    (row,) = story.add(A)
    xid = story.change(row)
    story.work()
    story.queue._end([xid], commits=False)
    if story.queue.left_out != "the periodic full scan":
        story.full_scan()


def quarantined(story: Story) -> None:
    (row,) = story.add(A)
    story.queue.excluded.add(row.id)
    story.work()
    story.queue.try_again()


MECHANISMS = {
    "late arrivals by id": by_id,
    "transactions in progress": in_progress,
    "transactions since": since,
    "released ordering keys": released,
    "new lanes": new_lane,
    "a lane that was forgotten": forgotten,
    "the answer to a flood": flood,
    "a full scan after a flood": flood_before_a_lane,
    "the answer to a flood of a lane": flood_of_a_lane,
    "late arrivals without capacity": without_capacity,
    "late arrivals that have changed": changed,
    "late arrivals are not scanned": scanned_too,
    "claims and catch-ups do not overlap": overlapping,
    "the clock": clock,
    "the next job of a lane": next_job,
    "a job scheduled for later": for_later,
    "the periodic full scan": skipped,
    "a full scan after quarantine": quarantined,
}


def left_after(part: str, left_out: str) -> list[Row]:
    """Return what could be started and was not after a story, and what should not have been."""
    story = Story(left_out)
    MECHANISMS[part](story)
    story.queue._drain(4)
    return story.queue._startable() + story.queue.taken_without_capacity


@pytest.mark.parametrize("part", MECHANISMS)
def test_each_mechanism_of_the_claim_protocol_is_needed(part: str) -> None:
    assert not left_after(part, left_out="")
    assert left_after(part, left_out=part)
