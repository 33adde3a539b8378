"""A claim reads a bounded part of many lanes, and passes over no job, however late it came."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.statements._parts import table
from sa_jobqueue.worker.background.controls import Controls
from sa_jobqueue.worker.claim import arrivals
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.cursors import START, Cursors, Lane, Snapshot
from sa_jobqueue.worker.claim.lanes import Lanes
from sa_jobqueue.worker.claim.partitions import Partitions
from sa_jobqueue.worker.claim.planner import MOST_KEYS
from tests.fixtures.jobs import Jobs
from tests.fixtures.lanes import fill, recorder
from tests.fixtures.transactions import call
from tests.fixtures.variants import variants
from tests.fixtures.workers import drain, quick, until, working

pytestmark = pytest.mark.slow

QUEUES = [f"q{number}" for number in range(5)]


class Claimed:
    """What claims were given, and how many jobs each has started."""

    def __init__(self) -> None:
        self.given: list[Mapping[str, Any]] = []
        self.started: list[int] = []

    @property
    def lanes(self) -> list[int]:
        """Return the number of lanes of each claim."""
        return [len(parameters["queues"]) for parameters in self.given]


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> Claimed:
    """Record the claims of workers in this process."""
    record, take = Claimed(), Lanes._take

    async def noted(self: Lanes, connection: AsyncConnection, parameters: dict[str, Any]) -> Any:
        answer = await take(self, connection, parameters)
        record.given.append(parameters)
        record.started.append(len(answer[0]))
        return answer

    monkeypatch.setattr(Lanes, "_take", noted)
    return record


@pytest.fixture
def no_later_full_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable full scans after the first, so that they find nothing that catch-ups have missed."""
    for name in ("FULL_SCAN_EVERY", "FULL_SCAN_IDLE"):
        monkeypatch.setattr(arrivals, name, 1e9)


@pytest.fixture
def full_scans() -> Iterator[list[int]]:
    """Record the number of rows of each page of a full scan."""
    pages: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_arguments: Any) -> None:
        if statement.startswith("WITH RECURSIVE lane") and "pg_snapshot_xmax" in statement:
            pages.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", note)
    yield pages
    event.remove(Engine, "after_cursor_execute", note)


async def test_a_worker_claims_for_all_types_and_queues_with_one_statement(
    engine: Engine, jobs: Jobs, claimed: Claimed
) -> None:
    queue, ran = JobQueue(), Counter[str]()
    for kind in ("send", "render", "count"):

        @queue.handler(kind, concurrency=None if kind == "count" else 4)
        async def note(context: AttemptContext) -> None:
            ran[context.job.type_name] += 1

        for name in ("a", "b"):
            jobs.add_many(2, type_name=kind, chain_type_name=kind, queue=name)
    await drain(queue, engine, queues=["a", "b"], concurrency=12)
    assert [count for count in claimed.started if count] == [12]
    assert ran == dict.fromkeys(("send", "render", "count"), 4)
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}


async def test_claims_do_not_scan_lanes_that_have_been_emptied(
    engine: Engine, claimed: Claimed, no_later_full_scan: None
) -> None:
    """Of many lanes that had jobs once, claims name the one that has some."""
    queue, recorded = recorder()
    for name in QUEUES:
        for priority in (9, 0, -8):
            fill(engine, 1, queue=name, priority=priority)
    fill(engine, 200, queue="q0", priority=-9)
    await drain(queue, engine, queues=QUEUES, concurrency=8)
    assert len(recorded) == 215
    assert max(claimed.lanes) <= 16
    full = [lanes for lanes, started in zip(claimed.lanes, claimed.started, strict=True) if started][5:-1]
    assert len(full) > 10
    assert set(full) == {1}


async def test_a_claim_scans_a_bounded_number_of_lanes_and_serves_every_fairness_key(
    engine: Engine, claimed: Claimed
) -> None:
    ran: list[str] = []
    queue = JobQueue()

    @queue.handler("test")
    async def note(context: AttemptContext) -> None:
        ran.append(context.job.fairness_key)

    with engine.begin() as writer:
        rows = [_row("test", queue="mail", fairness_key=str(key)) for key in range(4 * MOST_KEYS) for _ in range(2)]
        writer.execute(insert(table(Job)).values(rows))
    await drain(queue, engine, queues=["mail"], concurrency=16)
    assert max(claimed.lanes) <= MOST_KEYS
    assert Counter(ran) == dict.fromkeys(map(str, range(4 * MOST_KEYS)), 2)
    assert len(set(ran[: 3 * MOST_KEYS])) >= 2.9 * MOST_KEYS


async def test_a_full_scan_finds_more_lanes_than_fit_on_one_page(
    engine: Engine, full_scans: list[int], no_later_full_scan: None
) -> None:
    queue, ran = JobQueue(), Counter[str]()

    @queue.handler("test")
    async def note(context: AttemptContext) -> None:
        ran[context.job.fairness_key] += 1

    with engine.begin() as writer:
        rows = [_row("test", queue="mail", fairness_key=str(key)) for key in range(1100)]
        writer.execute(insert(table(Job)).values(rows))
    await drain(queue, engine, queues=["mail"], concurrency=200)
    assert full_scans[:2] == [1000, 100]
    assert ran == dict.fromkeys(map(str, range(1100)), 1)


@pytest.mark.parametrize("slots", [None, 3], ids=["one partition", "a partition of the type"])
async def test_jobs_added_to_a_lane_that_was_just_empty_are_found(
    slots: int | None, engine: Engine, no_later_full_scan: None
) -> None:
    """Each job puts another there, without a notification."""
    queue, recorded = recorder(slots)
    remaining = [(name, priority) for name in QUEUES for priority in (9, 0, -9)]

    @queue.handler("test_more")
    async def more(payload: dict[str, Any]) -> None:
        if remaining:
            name, priority = remaining.pop()
            await asyncio.to_thread(fill, engine, 2, queue=name, priority=priority, seconds_ago=0)

    fill(engine, 200, queue="q0", type_name="test_more")
    await drain(queue, engine, queues=QUEUES, concurrency=4)
    assert Counter(recorded) == {(name, priority): 2 for name in QUEUES for priority in (9, 0, -9)}


@pytest.mark.parametrize("limited", ["by slots", "across workers"])
async def test_run_until_idle_looks_for_late_arrivals_before_it_ends(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, limited: str, no_later_full_scan: None
) -> None:
    monkeypatch.setattr(arrivals, "CATCH_UP_EVERY", 1e9)  # so that only being idle has it ask
    queue, ran = JobQueue(), list[int]()

    @queue.handler("send", concurrency=4 if limited == "by slots" else None)
    async def send(number: int) -> None:
        ran.append(number)
        if number == 1:
            await asyncio.to_thread(jobs.add, type_name="send", input=2, due_in=-3600)

    if limited == "across workers":
        call(engine, upsert_queue, QueueSettings(name="default", global_concurrency=4))
    jobs.add(type_name="send", input=1)
    await drain(queue, engine, concurrency=1)  # it waits for the slot, and does not rest before its second claim
    assert ran == [1, 2]


def _row(kind: str, **columns: Any) -> dict[str, Any]:
    job_id = uuid7()
    return {"id": job_id, "chain_id": job_id, "type_name": kind, "chain_type_name": kind, "input": None} | columns


def _write(connection: Connection, chance: random.Random, count: int) -> None:
    rows = [
        _row(
            chance.choice(("send", "count", "unknown")),
            queue=chance.choice(("mail", "report")),
            fairness_key=chance.choice(("", "1", "2")),
            priority=chance.choice((0, 0, 5)),
            scheduled_at=func.now() - timedelta(seconds=chance.randrange(100)),
        )
        for _ in range(count)
    ]
    connection.execute(insert(table(Job)).values(rows))


@pytest.mark.parametrize("seed", variants(range(4), default=[0, 1]))
async def test_each_job_starts_once_however_late_it_is_committed(
    seed: int, engine: Engine, monkeypatch: pytest.MonkeyPatch, no_later_full_scan: None
) -> None:
    """By two workers, while transactions commit late. There is no full scan to find missed jobs."""
    if seed % 2:
        monkeypatch.setattr(arrivals, "_ARRIVALS", 8)  # each burst is a flood
    chance, queue, ran = random.Random(seed), JobQueue(), Counter[Any]()
    for kind in ("send", "count"):

        @queue.handler(kind, concurrency=3 if kind == "send" else None)
        async def note(context: AttemptContext) -> None:
            ran[context.job.id] += 1

    def write() -> None:
        late = [engine.connect() for _ in range(3)]
        for writer in late:
            writer.begin()
        for _ in range(30):
            if chance.random() < 0.4:
                with engine.begin() as prompt:
                    _write(prompt, chance, chance.choice((1, 5, 20)))
                continue
            writer = chance.choice(late)
            _write(writer, chance, chance.choice((1, 5, 20)))
            if chance.random() < 0.5:
                writer.commit()
                writer.begin()
        for writer in late:
            writer.commit()
            writer.close()

    def startable() -> set[Any]:
        with engine.connect() as reader:
            return set(reader.execute(text("SELECT id FROM job WHERE type_name <> 'unknown'")).scalars())

    options = quick(queues=["mail", "report"], concurrency=7, poll_interval=timedelta(milliseconds=30), listen=False)
    async with working(Worker(queue, engine, options=options)), working(Worker(queue, engine, options=options)):
        await asyncio.to_thread(write)
        await until(lambda: len(ran) >= len(startable()), description="every job has started")
    assert set(ran.values()) == {1}
    assert ran.keys() == startable()


async def test_catch_up_queries_each_lane_from_its_own_cursor_or_an_earlier_one(
    engine: Engine, jobs: Jobs, connection: AsyncConnection
) -> None:
    at = jobs.get(jobs.add(type_name="send", queue="mail", fairness_key="1", due_in=-50))["scheduled_at"]
    partitions = Partitions(
        {"mail": None},
        ["send"],
        {},
        executor=None,  # type: ignore[arg-type]
        model=Job,
        controls=Controls(),
        selections={},
    )
    cursors = Cursors((), UUID(int=0))
    backlog = Backlog(cursors, lambda _lane: None, lambda _lane: None)
    asking = Arrivals(Job, partitions, cursors, backlog, clock=lambda: 0.0)
    lanes = [Lane("mail", key, 0) for key in ("1", "2")]
    for lane, seconds in zip(lanes, (-10, 10), strict=True):
        cursors.lower(lane, at + timedelta(seconds=seconds))
        backlog.found(lane, 0.0, 0.0)
    backlog.read_to_end(lanes, 0.0)
    with engine.connect() as now:
        xmax = now.execute(text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")).scalar_one()
    cursors.watermark = Snapshot(xmax, [])  # so that it is not found otherwise
    await asking.catch_up(connection)
    assert list(backlog.open) == lanes[:1]
    assert cursors.of_lane[lanes[0]][0] > START
