"""One claim for several groups starts what each of them would have started alone, and passes nothing over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.statements._parts import table
from sa_jobqueue.worker.claim import floors
from sa_jobqueue.worker.claim.claims import Claims
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.planning import Share
from sa_jobqueue.worker.claim.turns import Turn, turn_of
from tests.behaviour.test_sharing import drain
from tests.fixtures.jobs import WORKER, Jobs

QUEUES = ("mail", "report", "sms")
KINDS = ("send", "render", "count", "unknown")
GROUPS = ((QUEUES[:2], ("send",)), (QUEUES[:2], ("render", "count")), (("sms",), ("count", "send")))


@pytest.fixture
def groups() -> list[Group]:
    """Return groups whose queues or types overlap, the first without shares between its queues."""
    return [
        Group(queues, types, UUID(int=0), room=None, limits=None, fair=number > 0)
        for number, (queues, types) in enumerate(GROUPS)
    ]


class Claimed:
    """Claims for all groups with one statement, with the least that a worker does around it."""

    def __init__(self, connection: AsyncConnection, groups: Sequence[Group]) -> None:
        self._connection, self._groups = connection, groups
        self._claims = Claims(Job, worker_id=WORKER, grace=timedelta(seconds=15), clock=lambda: 0.0)
        self.seen: Counter[Any] = Counter()

    async def take(
        self, quotas: Sequence[int], limit: int, *, behind: bool | Sequence[bool], now: float | None = None
    ) -> int:
        """Claim, check what came and move on; return how many jobs. `behind`: of each group, or of all."""
        looks = [behind] * len(quotas) if isinstance(behind, bool) else behind
        turns = [turn for turn in zip(self._groups, quotas, looks, strict=True) if turn[1]]
        asked = [turn_of(group, quota, looks=looks, now=now) for group, quota, looks in turns]
        asked = [turn for turn in asked if turn.reading is None or turn.reading.lanes]
        if not asked:
            return 0
        taken = await self._claims.take(self._connection, asked, limit)
        assert sum(len(jobs) for _, jobs in taken) <= limit
        for (group, quota, _, _, shares), (allowed, jobs) in zip(asked, taken, strict=False):
            assert len(jobs) <= allowed <= quota
            assert {job.queue for job in jobs} <= set(group.queues)
            assert {job.type_name for job in jobs} <= set(group.types)
            group.take(shares, jobs, allowed)
            self.seen.update(job.id for job in jobs)
        return sum(len(jobs) for _, jobs in taken)


def _write(connection: Connection, chance: random.Random, count: int) -> None:
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        job_id, kind = uuid7(), chance.choice(KINDS)
        at = func.now() - timedelta(seconds=chance.randrange(100))
        rows.append({"id": job_id, "chain_id": job_id, "type_name": kind, "chain_type_name": kind, "input": None})
        rows[-1] |= {"queue": chance.choice(QUEUES), "priority": chance.choice((0, 0, 5)), "scheduled_at": at}
    connection.execute(insert(table(Job)).values(rows))


def _startable(engine: Engine) -> set[Any]:
    with engine.connect() as connection:
        rows = connection.execute(select(Job.id, Job.queue, Job.type_name)).all()
    return {row.id for row in rows if any(row.queue in queues and row.type_name in types for queues, types in GROUPS)}


@pytest.mark.parametrize("is_sparing", [False, True])
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_written_and_however_late_each_job_is_claimed_once(
    seed: int, is_sparing: bool, engine: Engine, connection: AsyncConnection, groups: list[Group]
) -> None:
    """Nothing here ever drops the floors for safety's sake: what they pass over stays where it is."""
    chance, claimed = random.Random(seed), Claimed(connection, groups)
    for group in groups:
        group.floors.pace(1000)
    late = [engine.connect() for _ in range(2)]
    for writer in late:
        writer.begin()
    for _ in range(25):
        step = chance.random()
        if step < 0.3:
            with engine.begin() as writer:
                _write(writer, chance, chance.choice((1, 5, 40)))
        elif step < 0.6:
            writer = chance.choice(late)
            _write(writer, chance, chance.choice((1, 5, 20)))
            if chance.random() < 0.5:
                writer.commit()
                writer.begin()
        else:
            quotas = [chance.randrange(12) for _ in groups]
            limit = chance.randrange(1, 20)
            if any(quotas):
                if is_sparing:
                    looks = [group.floors.is_cold or chance.random() < 0.3 for group in groups]
                    await claimed.take(quotas, limit, behind=looks, now=chance.choice((0.0, 0.0, 1.0)))
                else:
                    is_cold = any(group.floors.is_cold for group in groups)
                    await claimed.take(quotas, limit, behind=is_cold or chance.random() < 0.5)
    for writer in late:
        writer.commit()
        writer.close()
    for _ in range(2):  # what is cut off behind the floors is looked for again
        while await claimed.take([7] * len(groups), 11, behind=True):
            pass
    assert set(claimed.seen.values()) == {1}
    assert claimed.seen.keys() == _startable(engine)


async def test_more_behind_the_floors_of_two_groups_than_a_claim_takes_is_all_found(
    engine: Engine, connection: AsyncConnection, groups: list[Group], jobs: Jobs
) -> None:
    claimed = Claimed(connection, groups)
    await claimed.take([10, 10, 10], 30, behind=True)  # moves every floor to now
    for kind in ("send", "render"):
        jobs.add_many(30, type_name=kind, chain_type_name=kind, queue="mail")
    # Of each group half of its quota at most, so that what lies ahead is not starved; what is cut off is not taken for all.
    assert await claimed.take([10, 10, 10], 30, behind=True) == 5 + 5
    while await claimed.take([10, 10, 10], 30, behind=True):
        pass
    assert claimed.seen.total() == 60


async def test_a_flood_behind_the_floors_leaves_half_of_a_shared_claim_to_what_lies_ahead(
    connection: AsyncConnection, groups: list[Group], jobs: Jobs
) -> None:
    claimed = Claimed(connection, groups[1:2])
    await claimed.take([10], 10, behind=True)  # moves every floor to now
    jobs.add_many(30, type_name="render", chain_type_name="render", queue="mail")
    ahead = {jobs.add(type_name="render", queue="report", due_in=0) for _ in range(5)}
    assert await claimed.take([10], 10, behind=True) == 10
    assert ahead <= claimed.seen.keys()


async def test_a_group_at_which_the_limit_was_reached_keeps_its_floors(
    connection: AsyncConnection, groups: list[Group], jobs: Jobs
) -> None:
    claimed = Claimed(connection, groups)
    jobs.add_many(5, type_name="send", chain_type_name="send", queue="mail")
    jobs.add_many(5, type_name="count", chain_type_name="count", queue="sms")
    assert await claimed.take([5, 5, 5], 5, behind=True) == 5
    assert [group.floors.is_cold for group in groups] == [False, True, True]
    assert await claimed.take([5, 5, 5], 15, behind=True) == 5


async def test_queues_that_share_do_so_within_their_group(
    connection: AsyncConnection, groups: list[Group], jobs: Jobs
) -> None:
    for queue in QUEUES[:2]:
        jobs.add_many(20, type_name="render", chain_type_name="render", queue=queue)
    shares, reading = groups[1].plan(10)
    assert shares == [Share("mail", 5), Share("report", 10)]
    claims = Claims(Job, worker_id=WORKER, grace=timedelta(seconds=15), clock=lambda: 0.0)
    asked = [Turn(groups[0], 10, None, behind=True), Turn(groups[1], 10, reading, behind=True)]
    (_, (_, started)) = await claims.take(connection, asked, 20)
    assert Counter(job.queue for job in started) == {"mail": 5, "report": 5}


async def test_a_worker_claims_for_all_types_with_one_statement(engine: Engine, jobs: Jobs) -> None:
    queue, ran = JobQueue(), Counter[str]()
    for kind in KINDS[:3]:

        @queue.handler(kind, concurrency=None if kind == "count" else 4)
        async def note(context: AttemptContext) -> None:
            ran[context.job.type_name] += 1

        jobs.add_many(4, type_name=kind, chain_type_name=kind)
    claims: list[int] = []

    def count(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if "picked AS" in statement and cursor.rowcount > 1:
            claims.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", count)
    try:
        await drain(queue, engine, concurrency=12)
    finally:
        event.remove(Engine, "after_cursor_execute", count)
    assert claims == [12]
    assert ran == dict.fromkeys(KINDS[:3], 4)
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}


@pytest.mark.parametrize("limited", ["by slots", "across workers"])
async def test_a_worker_that_ends_when_idle_has_looked_behind_its_floors(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, limited: str
) -> None:
    monkeypatch.setattr(floors, "_FULL_EVERY", 1e9)  # so that nothing else has it look there
    queue, ran = JobQueue(), list[int]()

    @queue.handler("send", concurrency=4 if limited == "by slots" else None)
    async def send(number: int) -> None:
        ran.append(number)
        if number == 1:
            await asyncio.to_thread(jobs.add, type_name="send", input=2, due_in=-3600)

    @queue.handler("count")
    async def count() -> None: ...

    if limited == "across workers":
        with Session(engine) as session, session.begin():
            upsert_queue(session, QueueSettings(name="default", global_concurrency=4))
    jobs.add(type_name="send", input=1)
    await drain(queue, engine, concurrency=1)  # it waits for the slot, and does not rest before its second claim
    assert ran == [1, 2]
