"""No job is skipped, offered without effect or hidden: a group with a selector against a model of the database.

The group is the worker's own, with floors, parts and memory; the model answers its statements as `statements.choosing` says:
with transactions, snapshots, and other workers that start what was offered.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sa_jobqueue.registry import Candidate
from sa_jobqueue.worker.claim.floors import SAFETY
from sa_jobqueue.worker.claim.selectors import ChosenGroup

WINDOW = 4
T = TypeVar("T")


@dataclass(eq=False)
class Row:
    """A committed job, with the transaction that wrote it last."""

    id: int
    priority: int
    at: datetime
    xid: int
    pending: bool = True

    @property
    def key(self) -> tuple[datetime, int]:
        return self.at, self.id


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    raise AssertionError("it waited")


class Queue(RuleBasedStateMachine):
    """One worker's group, and everybody else."""

    @initialize()
    def start(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.monotonic = 100.0
        self.next_xid, self.last_id = 10, 0
        self.open: dict[int, list[tuple[Row, int, datetime]]] = {}
        self.rows: list[Row] = []
        self.data: st.DataObject
        self.offered: Sequence[Candidate] = ()
        self.named: Sequence[int] | None = None
        self.started: list[int] = []
        caller = SimpleNamespace(
            selector=SimpleNamespace(queue="a", window=WINDOW, inputs=False, max_wait=None), choose=self._choose
        )
        statements = SimpleNamespace(
            candidates=SimpleNamespace(execute=self._candidates), claim=SimpleNamespace(execute=self._claim)
        )
        self.group = ChosenGroup(
            ["a"],
            ["test"],
            0,
            room=None,
            limits=None,
            fair=True,
            caller=cast("Any", caller),
            statements=cast("Any", statements),
        )
        self.group.floors.reset(self.monotonic)

    # What others do.

    @rule()
    def begin(self) -> None:
        self.open[self._new_xid()] = []

    @precondition(lambda self: self.open)
    @rule(data=st.data(), priority=st.sampled_from([5, 0]), offsets=st.lists(st.integers(-20, 3), min_size=1, max_size=4))
    def insert(self, data: st.DataObject, priority: int, offsets: list[int]) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        for offset in offsets:
            self.last_id += 1
            row = Row(self.last_id, priority, self.now, xid)
            self.open[xid].append((row, priority, self.now + timedelta(seconds=offset)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        for row, priority, at in self.open.pop(xid):
            row.priority, row.at, row.xid = priority, at, xid
            self.rows.append(row)

    @precondition(lambda self: self._pending())
    @rule(data=st.data(), priority=st.sampled_from([5, 0]), offset=st.integers(-20, 3))
    def change(self, data: st.DataObject, priority: int, offset: int) -> None:
        """Move a pending job to another priority and time."""
        row = data.draw(st.sampled_from(self._pending()))
        row.priority, row.at, row.xid = priority, self.now + timedelta(seconds=offset), self._new_xid()

    @precondition(lambda self: self._due())
    @rule(data=st.data())
    def start_elsewhere(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self._due()))
        row.pending, row.xid = False, self._new_xid()

    @precondition(lambda self: any(not row.pending for row in self.rows))
    @rule(data=st.data(), offset=st.integers(-20, 3))
    def put_back(self, data: st.DataObject, offset: int) -> None:
        row = data.draw(st.sampled_from([row for row in self.rows if not row.pending]))
        row.pending, row.at, row.xid = True, self.now + timedelta(seconds=offset), self._new_xid()

    @rule(seconds=st.integers(-3, 6))
    def tick(self, seconds: int) -> None:
        """Let time pass; the database's clock may step back, the process's never does."""
        self.now += timedelta(seconds=seconds)
        self.monotonic += max(seconds, 0)

    # What the worker does.

    @rule(data=st.data(), limit=st.integers(1, 3))
    def work(self, data: st.DataObject, limit: int) -> None:
        """Start some of what is offered; others are left out."""
        self.data, self.named = data, None
        self._work(limit)

    @rule(limit=st.integers(1, 3))
    def drain(self, limit: int) -> None:
        """Start whatever is offered: then nothing is due that was not."""
        self.named = ()
        for _ in range(2 * len(self.rows) + 4):
            if self._work(limit) == 0 and not self.offered:
                break
        assert not self._due()

    @rule(limit=st.integers(1, 3))
    def look_again_when_floors_are_dropped(self, limit: int) -> None:
        """Leave all out: a window that was full then has what goes first of all that is due."""
        self.monotonic += 2 * SAFETY
        self.named = []
        self._work(limit)
        first = sorted(self._due(), key=lambda row: (-row.priority, *row.key))[:WINDOW]
        assert [one.id for one in self.offered] == [row.id for row in first]

    def _work(self, limit: int) -> int:
        self.offered = list[Candidate]()
        run(self.group.offer(cast("Any", None), limit, lambda: self.monotonic, ()))
        assert len(self.offered) <= WINDOW
        assert len({one.id for one in self.offered}) == len(self.offered)
        assert {one.id for one in self.offered} <= {row.id for row in self._due()}
        jobs = run(self.group.claim(cast("Any", None), {"limit": limit, "types": ["test"]}))
        self.group.take([], jobs, limit)
        return len(jobs)

    async def _choose(self, candidates: Sequence[Candidate], free: int) -> Sequence[Candidate]:
        self.offered = candidates
        if self.named is None:
            return [one for one in candidates if self.data.draw(st.booleans())]
        return candidates if self.named == () else []

    async def _candidates(self, connection: Any, given: Mapping[str, Any]) -> list[Any]:
        lanes = list(zip(given["priorities"], given["floor_at"], given["floor_id"], strict=True))
        floors = {priority: (at, id_) for priority, at, id_ in lanes}
        due = self._due()
        behind = [row for row in due if row.key <= floors[row.priority] and row.at <= given["highest_floor"]]
        behind = [row for row in behind if row.id not in given["held"]]
        found = [row for xid in given["xip"] for row in behind if row.xid == int(xid)]
        found += sorted((row for row in behind if row.xid >= int(given["xmax"])), key=lambda row: row.xid)
        found = found[: given["most_behind"]]
        (quota,) = given["quotas"]
        ahead: list[Row] = []
        for priority, *floor in lanes:
            ahead += sorted((r for r in due if r.priority == priority and r.key > tuple(floor)), key=lambda row: row.key)
        found = (found + ahead[:quota])[: given["limit"]]
        held = [row for row in due if row.id in given["held"]]
        xmax, xip = str(self.next_xid), [str(xid) for xid in sorted(self.open)]
        told = [(True, row) for row in found] + [(False, row) for row in held]
        rows = [(self.now, xmax, xip, is_new, *self._told(row)) for is_new, row in told]
        return rows or [(self.now, xmax, xip, None, *[None] * 13)]

    async def _claim(self, connection: Any, given: Mapping[str, Any]) -> list[Any]:
        due = {row.id: row for row in self._due()}
        taken = [due[job_id] for job_id in given["ids"] if job_id in due][: given["limit"]]
        xid = self._new_xid()
        for row in taken:
            row.pending, row.xid = False, xid
        return [(self.now, "", [], row.id, "test", "a", "", row.priority, *[None] * 17) for row in taken]

    def _told(self, row: Row) -> tuple[Any, ...]:
        return row.id, "test", "a", "", row.priority, row.id, 0, self.now, row.at, 0, None, None, None

    def _pending(self) -> list[Row]:
        return [row for row in self.rows if row.pending]

    def _due(self) -> list[Row]:
        return [row for row in self._pending() if row.at <= self.now]

    def _new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1


@pytest.mark.parametrize("histories", [150, pytest.param(1500, marks=pytest.mark.long)])
def test_no_job_is_passed_over(histories: int) -> None:
    """The same histories in every run; many, and new ones, in the long run."""
    few = histories < 1000
    chosen = settings(max_examples=histories, stateful_step_count=50, deadline=None, derandomize=few, database=None)
    run_state_machine_as_test(Queue, settings=chosen)
