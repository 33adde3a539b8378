"""A claim leaves lanes out that have just been empty, and passes nothing over: what comes into them has its turn soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue import Job
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.worker.claim.claims import Claims
from sa_jobqueue.worker.claim.floors import Lane
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.sparing import Sparing
from sa_jobqueue.worker.claim.turns import asked_of
from tests.behaviour.test_sharing import drain, fill, recorder
from tests.fixtures.jobs import WORKER

QUEUES = [f"q{number}" for number in range(5)]


class Sparer:
    """Claims for groups as a worker of many lanes does, by a clock that the test advances."""

    def __init__(self, connection: AsyncConnection, groups: Sequence[Group]) -> None:
        self._connection, self.groups, self.now = connection, groups, 100.0
        self._claims = Claims(Job, worker_id=WORKER, grace=timedelta(seconds=15), clock=lambda: self.now)
        for group in groups:
            group.floors.pace(400)
            group.floors.reset(self.now)
        self.lanes: list[Lane] = []
        """Those that the last claim has named."""

    async def claim(self, limit: int) -> Counter[tuple[str, int]]:
        """Claim once; return what came, by queue and priority."""
        looking = {group.name for group in self.groups if group.floors.prepare(self.now, idle=False)}
        asked, _ = asked_of([(group, limit) for group in self.groups], looking, limit, self.now)
        taken = await self._claims.take(self._connection, asked, limit)
        self.lanes = [
            turn.group.floors.lanes[place]
            for turn in asked
            for place in (turn.reading.lanes if turn.reading else range(len(turn.group.floors.lanes)))
        ]
        for turn, (allowed, jobs) in zip(asked, taken, strict=False):
            turn.group.take(turn.shares, jobs, allowed)
        return Counter((job.queue, job.priority) for _, jobs in taken for job in jobs)


@pytest.fixture
async def connection(engine: Engine) -> AsyncIterator[AsyncConnection]:
    """Return a connection as a worker claims on."""
    connections = Connections(engine.url, worker_name="here", patience=timedelta(seconds=15))
    own = connections.engine(1)
    async with own.connect() as made:
        yield made
    await own.dispose()
    await connections.close(timedelta(seconds=1))


def group_of(queues: Sequence[str], *types: str, fair: bool = True) -> Group:
    return Group(queues, types or ("test",), UUID(int=0), room=None, limits=None, fair=fair)


@pytest.mark.parametrize("fair", [True, False], ids=["shares", "in order"])
async def test_what_comes_into_an_empty_lane_waits_for_the_next_look_at_most(
    fair: bool, engine: Engine, connection: AsyncConnection
) -> None:
    sparer = Sparer(connection, [group_of(QUEUES, fair=fair)])
    fill(engine, 100, queue="q0")
    await sparer.claim(4)
    assert await sparer.claim(4) == {("q0", 0): 4}
    fill(engine, 1, queue="q0", priority=9, seconds_ago=0)
    assert await sparer.claim(4) == {("q0", 0): 4}
    assert sparer.lanes == [Lane("q0", 0)]
    sparer.now += 0.06
    assert await sparer.claim(4) == {("q0", 9): 1, ("q0", 0): 3}
    assert len(sparer.lanes) == 19 * len(QUEUES)


async def test_a_notification_that_names_a_queue_has_the_next_claim_read_all_of_it(
    engine: Engine, connection: AsyncConnection
) -> None:
    sparer = Sparer(connection, [group_of(QUEUES)])
    fill(engine, 100, queue="q0")
    await sparer.claim(4)
    fill(engine, 10, queue="q3", priority=5, seconds_ago=0)
    sparer.groups[0].floors.stir("q3")
    assert await sparer.claim(4) == {("q0", 0): 2, ("q3", 5): 2}
    assert len(sparer.lanes) == 1 + 19
    assert await sparer.claim(4) == {("q0", 0): 2, ("q3", 5): 2}
    assert set(sparer.lanes) == {Lane("q3", 5), Lane("q0", 0)}
    sparer.groups[0].floors.stir(None)
    await sparer.claim(4)
    assert len(sparer.lanes) == 19 * len(QUEUES)


async def test_behind_the_lane_that_gives_nothing_more_the_others_are_read(
    engine: Engine, connection: AsyncConnection
) -> None:
    sparer = Sparer(connection, [group_of(QUEUES, fair=False)])
    fill(engine, 5, queue="q0", priority=5)
    fill(engine, 100, queue="q0", priority=-3)
    assert await sparer.claim(4) == {("q0", 5): 4}
    assert await sparer.claim(4) == {("q0", 5): 1}
    assert await sparer.claim(4) == {("q0", -3): 4}
    assert await sparer.claim(4) == {("q0", -3): 4}
    assert sparer.lanes == [Lane("q0", -3)]


async def test_of_many_groups_those_are_asked_that_fill_a_claim_and_each_looks_for_itself(
    engine: Engine, connection: AsyncConnection
) -> None:
    groups = [group_of(["q0"], "other"), group_of(["q0"]), group_of(["q1"])]
    sparer = Sparer(connection, groups)
    for queue in ("q0", "q1"):
        fill(engine, 20, queue=queue)
    assert await sparer.claim(4) == {("q0", 0): 4}  # the last group was not read
    assert [group.floors.is_cold for group in groups] == [False, False, True]
    assert await sparer.claim(4) == {("q0", 0): 4}
    assert sparer.lanes == [Lane("q0", 0)]
    sparer.groups = groups[::-1]
    assert await sparer.claim(4) == {("q1", 0): 4}
    assert len(sparer.lanes) == 19 + 1  # all of what is not known yet, and what is there in case that gives nothing
    assert await sparer.claim(4) == {("q1", 0): 4}
    assert sparer.lanes == [Lane("q1", 0)]


@pytest.mark.parametrize("slots", [None, 3], ids=["one group", "a group of the type"])
@pytest.mark.parametrize("fair", [True, False])
async def test_a_worker_of_many_lanes_leaves_nothing_behind(slots: int | None, fair: bool, engine: Engine) -> None:
    """Each job puts another into a lane that has just been empty, without a notification."""
    queue, seen = recorder(slots)
    left = [(name, priority) for name in QUEUES for priority in (9, 0, -9)]

    @queue.handler("test_more")
    async def more(payload: dict[str, Any]) -> None:
        if left:
            name, priority = left.pop()
            await asyncio.to_thread(fill, engine, 2, queue=name, priority=priority, seconds_ago=0)

    fill(engine, 200, queue="q0", type_name="test_more")
    await drain(queue, engine, queues=QUEUES, concurrency=4, fair=fair)
    assert Counter(seen) == {(name, priority): 2 for name in QUEUES for priority in (9, 0, -9)}


def test_what_is_not_read_for_long_is_read_whole() -> None:
    sparing, places = Sparing(), [7, 8, 9]
    sparing.fresh_for = 1.0
    assert sparing.lanes("mail", places, 0.0) == places
    sparing.learn("mail", places, 1, is_whole=True, now=0.0)
    assert sparing.has_more("mail")
    assert sparing.lanes("mail", places, 0.9) == [8]
    sparing.learn("mail", [8], 1, is_whole=False, now=0.9)
    assert sparing.lanes("mail", places, 0.9) == [9]
    sparing.learn("mail", [9], 1, is_whole=False, now=0.9)
    assert list(sparing.lanes("mail", places, 0.9)) == []
    assert not sparing.has_more("mail")
    assert sparing.lanes("mail", places, 1.0) == places


def test_what_was_under_way_does_not_rescue_what_a_notification_has_said() -> None:
    sparing, places = Sparing(), [7, 8]
    sparing.fresh_for = 1.0
    sparing.stir(["mail"])
    sparing.learn("mail", places, 2, is_whole=True, now=0.0)
    assert sparing.lanes("mail", places, 0.1) == places
    assert list(sparing.lanes("mail", places, 0.1)) == []
    sparing.forget()
    sparing.learn("mail", [8], 0, is_whole=False, now=0.2)
    assert sparing.lanes("mail", places, 0.3) == places
