"""No job is passed over: the floors against a model of the database, driven through interleavings of everything.

The model has transactions with ids, snapshots, row locks and a clock that may step; its claim does what the statement
in `statements.claims` says. What is proved of each run is in `Queue.check_*`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sa_jobqueue.worker.claim.floors import SAFETY, Floors, Lane, most_behind
from sa_jobqueue.worker.claim.planning import Share
from sa_jobqueue.worker.claim.readings import Reading

LANES = [Lane("a", 5), Lane("b", 5), Lane("a", 0)]
Key = tuple[datetime, int]


@dataclass(eq=False)
class Row:
    """The committed state of a pending job, and what an open transaction makes of it."""

    lane: Lane
    at: datetime
    id: int
    xid: int
    claimed: bool = False
    locked_by: int | None = None
    passed: bool = False
    """A claim skipped it because it was locked, after the floors were last dropped."""

    @property
    def key(self) -> Key:
        return (self.at, self.id)


@dataclass
class Transaction:
    """What will be true when it commits."""

    rows: list[Row] = field(default_factory=list)
    moves: list[tuple[Row, Lane, datetime]] = field(default_factory=list)


class Queue(RuleBasedStateMachine):
    """One worker's floors, and everybody else."""

    @initialize()
    def start(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.monotonic = 100.0
        self.next_xid = 10
        self.open: dict[int, Transaction] = {}
        self.rows: list[Row] = []
        self.ids: set[int] = set()
        self.floors = Floors(LANES, 0)
        self.floors.reset(self.monotonic)
        self.floors.pace(len(LANES))
        self.seen: set[Row] = set()

    # What others do.

    @rule()
    def begin(self) -> None:
        self.open[self._new_xid()] = Transaction()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), lane=st.sampled_from(LANES), offset=st.integers(-20, 3), job_id=st.integers(1, 60))
    def insert(self, data: st.DataObject, lane: Lane, offset: int, job_id: int) -> None:
        """Enqueue with a key in the past, now, or later; few instants and ids, so that keys collide and interleave."""
        if job_id not in self.ids:
            self.ids.add(job_id)
            xid = data.draw(st.sampled_from(sorted(self.open)))
            self.open[xid].rows.append(Row(lane, self.now + timedelta(seconds=offset), job_id, xid))

    @precondition(lambda self: self.open and self._pending())
    @rule(data=st.data(), lane=st.sampled_from(LANES), offset=st.integers(-20, 3))
    def move(self, data: st.DataObject, lane: Lane, offset: int) -> None:
        """Change queue, priority or time of a pending job: its row is locked until that transaction ends."""
        row = data.draw(st.sampled_from(self._pending()))
        xid = data.draw(st.sampled_from(sorted(self.open)))
        if row.locked_by is None:
            row.locked_by = xid
            self.open[xid].moves.append((row, lane, self.now + timedelta(seconds=offset)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        transaction = self.open.pop(xid)
        self.rows += transaction.rows
        for row, lane, at in transaction.moves:
            row.lane, row.at, row.xid, row.locked_by, row.passed = lane, at, xid, None, False

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        transaction = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        for row, _, _ in transaction.moves:
            row.locked_by = None

    @rule(seconds=st.integers(-3, 6))
    def tick(self, seconds: int) -> None:
        """Let time pass; the database's clock may step back, the process's never does."""
        self.now += timedelta(seconds=seconds)
        self.monotonic += max(seconds, 0)

    @precondition(lambda self: any(row.claimed for row in self.rows))
    @rule(data=st.data(), offset=st.integers(-20, 3))
    def retry(self, data: st.DataObject, offset: int) -> None:
        """Put a claimed job back, due at any time."""
        row = data.draw(st.sampled_from([row for row in self.rows if row.claimed]))
        row.claimed, row.at, row.xid, row.passed = False, self.now + timedelta(seconds=offset), self._new_xid(), False

    # What the worker does.

    @rule(limit=st.integers(1, 4), rest=st.sampled_from([0.0, 0.01, 0.06]))
    def claim(self, limit: int, rest: float) -> None:
        self.monotonic += rest
        behind = self.floors.prepare(self.monotonic, idle=False)
        self._claim(limit, behind=behind)

    @rule(limit=st.integers(1, 6), rest=st.sampled_from([0.0, 0.06]), quotas=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def claim_shared(self, limit: int, rest: float, quotas: tuple[int, int]) -> None:
        """Claim queue after queue, each up to its quota, however that was planned."""
        self.monotonic += rest
        behind = self.floors.prepare(self.monotonic, idle=False)
        reading = self.floors.blocks([Share("b", quotas[0]), Share("a", quotas[1])])
        self._claim(limit, behind=behind, reading=reading)

    @rule(limit=st.integers(1, 6), rest=st.sampled_from([0.0, 0.06]), quotas=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def claim_without_what_was_empty(self, limit: int, rest: float, quotas: tuple[int, int]) -> None:
        """Claim as a worker of many queues does, with or without a notification."""
        self.monotonic += rest
        if behind := self.floors.prepare(self.monotonic, idle=False):
            self.floors.stir("a")
        shares = [Share("b", quotas[0]), Share("a", quotas[1])]
        reading = self.floors.blocks(shares, None if behind else self.monotonic, limit)
        if reading.lanes:
            self._claim(limit, behind=behind, reading=reading)

    @rule(limit=st.integers(1, 6), rest=st.sampled_from([0.0, 0.06]))
    def claim_in_order_without_what_was_empty(self, limit: int, rest: float) -> None:
        """The same of one block of all lanes."""
        self.monotonic += rest
        behind = self.floors.prepare(self.monotonic, idle=False)
        reading = None if behind else self.floors.spared(limit, self.monotonic)
        if reading is None or reading.lanes:
            self._claim(limit, behind=behind, reading=reading)

    @rule(limit=st.integers(1, 3), lane=st.sampled_from(LANES))
    def claim_one_lane(self, limit: int, lane: Lane) -> None:
        """Claim out of turn from one lane, as for the job that has waited longest."""
        if not self.floors.prepare(self.monotonic, idle=False):
            self._claim(limit, behind=False, reading=self.floors.single(lane, limit))

    @rule(limit=st.integers(1, 4))
    def claim_that_fails(self, limit: int) -> None:
        """Lose the answer: nothing is claimed, and the floors start over."""
        self.floors.prepare(self.monotonic, idle=False)
        self._start_over()

    @rule(limit=st.integers(1, 4))
    def drain(self, limit: int) -> None:
        """Claim as the claimer does until it would go to sleep: then nothing is left that it was allowed to take."""
        self._drain(limit)
        assert not [row for row in self._takeable() if not row.passed]

    @rule(limit=st.integers(1, 4))
    def drain_after_the_safety_interval(self, limit: int) -> None:
        """Whatever was skipped, it is found once the floors were dropped."""
        self.monotonic += SAFETY
        self._drain(limit)
        assert not self._takeable()

    @invariant()
    def check_floors_pass_nothing(self) -> None:
        """At or behind a floor lies nothing unclaimed that the last look behind the floors had seen."""
        if hasattr(self, "floors"):
            left = [row for row in self.seen if not row.claimed and not row.passed and row.locked_by is None]
            assert not [row for row in left if row.key <= self._floor(row.lane) and row.xid in self.seen_xids]

    def _claim(self, limit: int, *, behind: bool, reading: Reading | None = None) -> int:
        given = self.floors.parameters(changed=behind, reading=reading)
        lanes = [Lane(*lane) for lane in zip(given["queues"], given["priorities"], strict=True)]
        floors = dict(zip(lanes, zip(given["floor_at"], given["floor_id"], strict=True), strict=True))
        cold = set(given["floor_at"]) == {datetime(1, 1, 1, tzinfo=UTC)} and len(lanes) == len(LANES)
        if cold:
            for row in self.rows:
                row.passed = False
        due = [row for row in self._pending() if row.at <= self.now]
        found: list[Row] = []
        if behind:
            strays = [row for row in due if row.key <= floors[row.lane] and row.at <= given["highest_floor"]]
            for xid in given["xip"]:
                found += self._locking([row for row in strays if row.xid == int(xid)], limit)
            since = sorted((row for row in strays if row.xid >= int(given["xmax"])), key=lambda row: row.xid)
            found += self._locking(since, limit)
            found = found[: limit if reading is None else most_behind(limit)]
        blocks = [(1, len(lanes), limit)]
        if reading is not None:
            blocks = list(zip(reading.firsts, reading.lasts, reading.quotas, strict=True))
        for first, last, quota in blocks:
            most = min(limit, len(found) + quota)
            for lane in lanes[first - 1 : last]:
                if len(found) < most:  # lazily: a lane that is not needed is not read
                    ahead = [row for row in due if row.lane == lane and row.key > floors[lane]]
                    found += self._locking(sorted(ahead, key=lambda row: row.key), most - len(found))
        taken = found[:limit]
        for row in taken:
            row.claimed = True
        self._new_xid()
        snapshot = (str(self.next_xid), [str(xid) for xid in sorted(self.open)])
        self.floors.advance(
            [(row.lane.queue, row.lane.priority, row.at, row.id) for row in taken],
            limit=limit,
            changed=behind,
            database_now=self.now,
            snapshot=snapshot,
            started=self.monotonic,
            now=self.monotonic,
            reading=reading,
        )
        if behind and self.floors.parameters(changed=True)["xmax"] == snapshot[0]:
            self.seen, self.seen_xids = set(self.rows), {row.xid for row in self.rows}
        return len(taken)

    def _drain(self, limit: int) -> None:
        for _ in range(2 * len(self.rows) + 4):
            behind = self.floors.prepare(self.monotonic, idle=False)
            taken = self._claim(limit, behind=behind)
            if taken == 0 and not behind:
                self.floors.prepare(self.monotonic, idle=True)
                taken = self._claim(limit, behind=True)
            if taken == 0:
                return
        raise AssertionError("claims came back with jobs more often than there are jobs")

    def _locking(self, rows: list[Row], limit: int) -> list[Row]:
        """Take rows in order, skipping the locked ones, and remember whom a scan has passed over."""
        taken: list[Row] = []
        for row in rows:
            if len(taken) == limit:
                break
            if row.locked_by is None:
                taken.append(row)
            else:
                row.passed = True
        return taken

    def _start_over(self) -> None:
        self.floors.reset(self.monotonic)
        self.seen, self.seen_xids = set(), set()

    def _floor(self, lane: Lane) -> Key:
        given = self.floors.parameters(changed=False)
        place = self.floors.lanes.index(lane)
        return given["floor_at"][place], given["floor_id"][place]

    def _pending(self) -> list[Row]:
        return [row for row in self.rows if not row.claimed]

    def _takeable(self) -> list[Row]:
        return [row for row in self._pending() if row.at <= self.now and row.locked_by is None]

    def _new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1


Queue.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestNoJobIsPassedOver = Queue.TestCase
