"""How soon free capacity under a limit is used: at once by the worker that freed it, by another one at its next count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import JobQueue, Worker, cancel_jobs
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import Discard, Snooze
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.worker.claim import arrivals, claims, idleness, lanes, limits
from sa_jobqueue.worker.claim.claimer import Claimer
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import PATIENCE, quick, until, working

NEVER = timedelta(minutes=5)
LIMITS = {
    "queue": "INSERT INTO queue (name, global_concurrency) VALUES ('default', 1)",
    "type": "INSERT INTO job_type (type_name, global_concurrency) VALUES ('test', 1)",
    "key": "INSERT INTO queue (name, concurrency_per_key) VALUES ('default', 1)",
    "part": "INSERT INTO queue (name, fairness_key, global_concurrency) VALUES ('default', '1', 1)",
}


class Gate:
    """A handler whose jobs wait until they are released, by their inputs."""

    def __init__(self) -> None:
        self.jobs = JobQueue()
        self._begun: dict[str, asyncio.Event] = {}
        self._open: dict[str, asyncio.Event] = {}
        self.jobs.handler("test")(self._run)

    async def _run(self, payload: str, ctx: AttemptContext) -> None:
        self._begun.setdefault(payload, asyncio.Event()).set()
        async with asyncio.timeout(PATIENCE):
            await self._open.setdefault(payload, asyncio.Event()).wait()
        if payload == "discarded":
            raise Discard("for the test")
        if payload == "snoozed" and ctx.attempt == 1:
            raise Snooze(NEVER)

    async def begins(self, payload: str) -> None:
        """Wait until a job runs."""
        async with asyncio.timeout(PATIENCE):
            await self._begun.setdefault(payload, asyncio.Event()).wait()

    def release(self, *payloads: str) -> None:
        """Let jobs end."""
        for payload in payloads:
            self._open.setdefault(payload, asyncio.Event()).set()


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], bool]:
    """Count again under full limits only when a job of the worker ends; return a check for how many workers rest."""
    monkeypatch.setattr(idleness, "_POLLS", 0.0)
    for module in (limits, claims, lanes):
        monkeypatch.setattr(module, "FULL", NEVER.total_seconds())
    sleeping: set[Claimer] = set()
    sleep = Claimer._sleep

    async def watched(self: Claimer) -> None:
        sleeping.add(self)
        await sleep(self)
        sleeping.discard(self)

    monkeypatch.setattr(Claimer, "_sleep", watched)
    return lambda workers: sum(not claimer._woken.is_set() for claimer in list(sleeping)) == workers


def run(engine: Engine, statement: str) -> None:
    """Run a statement in a transaction of its own."""
    write(engine, statement)


@asynccontextmanager
async def at_work(engine: Engine, gate: Gate, queue: str = "default") -> AsyncIterator[Worker]:
    """Run a worker of a queue that polls only after a notification, and is already listening."""
    worker = Worker(gate.jobs, engine, options=quick(poll_interval=NEVER, queues=[queue]))
    async with working(worker):
        await until(lambda: worker.vitals.is_listening is True, description="it listens")
        yield worker


@pytest.mark.slow
async def test_a_conflicting_claim_is_retried_even_if_its_pause_ends_before_the_worker_sleeps(
    engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine, the four milliseconds are over before it rests: it must not rest until the next poll."""
    monkeypatch.setattr(limits, "BUSY", 1e-9)
    for name in ("FULL_SCAN_EVERY", "FULL_SCAN_IDLE"):
        monkeypatch.setattr(arrivals, name, NEVER.total_seconds())
    met, capacity = asyncio.Event(), limits.Limits.capacity

    async def watched(self: limits.Limits, *arguments: Any) -> Any:
        capacities = await capacity(self, *arguments)
        if self.retry_in == limits.BUSY:
            met.set()
        return capacities

    monkeypatch.setattr(limits.Limits, "capacity", watched)
    run(engine, LIMITS["type"])
    gate = Gate()
    jobs.add(input="first")
    with engine.connect() as other_connection:
        other_connection.execute(text("SELECT FROM job_type FOR UPDATE"))
        async with at_work(engine, gate):
            async with asyncio.timeout(PATIENCE):
                await met.wait()
            await until(lambda: asleep(1), description="it rests")
            other_connection.rollback()
            await gate.begins("first")
            gate.release("first")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIMITS)
async def test_capacity_freed_by_another_worker_is_found_without_a_notification(
    kind: str, engine: Engine, jobs: Jobs
) -> None:
    """The worker that waits counts again every `limits.FULL` seconds: its poll interval is five minutes."""
    run(engine, LIMITS[kind])
    key = "1" if kind in {"key", "part"} else ""
    gate, other_gate = Gate(), Gate()
    jobs.add(input="first", queue="default", fairness_key=key)
    async with at_work(engine, gate) as stopping:
        await gate.begins("first")
        jobs.add(input="second", queue="default", fairness_key=key)
        async with at_work(engine, other_gate):
            stopping.stop()
            gate.release("first")
            await other_gate.begins("second")
            other_gate.release("second")


async def test_capacity_freed_while_the_same_worker_counts_is_used_at_once(
    engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count ran before the end was committed, and the end is reported before the claim knows the result."""
    run(engine, LIMITS["type"])
    gate, is_counted, is_reported = Gate(), asyncio.Event(), asyncio.Event()
    count, claims = limits.Limits._count, Claimer.run
    claimers: list[Claimer] = []

    async def recorded(self: Claimer) -> None:
        claimers.append(self)
        await claims(self)

    async def count_late(self: limits.Limits, *arguments: Any) -> Any:
        counts = await count(self, *arguments)
        is_counted.set()
        async with asyncio.timeout(PATIENCE):
            await is_reported.wait()
        return counts

    monkeypatch.setattr(Claimer, "run", recorded)
    jobs.add(input="first")
    jobs.add(input="second")
    async with at_work(engine, gate):
        await gate.begins("first")
        await until(lambda: asleep(1), description="the limit is full")
        monkeypatch.setattr(limits.Limits, "_count", count_late)
        claimers[0]._signals.ended.connect(lambda job_id: is_reported.set())  # after the claimer itself
        for partition in claimers[0]._division.lanes.partitions.every:
            partition.full_until = 0.0  # as if it were time to count again
        claimers[0].notified(None)
        async with asyncio.timeout(PATIENCE):
            await is_counted.wait()
        gate.release("first", "second")
        await gate.begins("second")


@pytest.mark.parametrize("kind", ["limit", "ordering key"])
async def test_cancelling_a_running_job_frees_its_capacity_at_once(
    kind: str, engine: Engine, jobs: Jobs, asleep: Callable[[int], bool]
) -> None:
    if kind == "limit":
        run(engine, LIMITS["type"])
    key = "k" if kind == "ordering key" else None
    gate = Gate()
    first = jobs.add(input="first", ordering_key=key)
    async with at_work(engine, gate):
        await gate.begins("first")
        jobs.add(input="second", ordering_key=key)
        run(engine, "SELECT pg_notify('.job:due', 'default')")
        await until(lambda: asleep(1), description="the second may not start")
        call(engine, cancel_jobs, [first])
        await gate.begins("second")
        gate.release("second")


async def test_a_worker_running_all_the_limit_allows_does_not_ask_for_more(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, asleep: Callable[[int], bool]
) -> None:
    run(engine, LIMITS["queue"])
    limits_asked, capacity = [], limits.Limits.capacity

    async def watched(self: limits.Limits, *arguments: Any) -> tuple[int, dict[QueueKey, int]]:
        limits_asked.append(self)
        return await capacity(self, *arguments)

    monkeypatch.setattr(limits.Limits, "capacity", watched)
    gate = Gate()
    jobs.add(input="first")
    jobs.add(input="second")
    async with at_work(engine, gate):
        await gate.begins("first")
        await until(lambda: asleep(1), description="it rests")
        before = len(limits_asked)
        for _ in range(3):
            run(engine, "SELECT pg_notify('.job:due', 'default')")
            await until(lambda: asleep(1), description="it rests")
        assert len(limits_asked) == before
        gate.release("first", "second")
        await gate.begins("second")
    assert len(limits_asked) > before
