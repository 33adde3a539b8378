"""A claim under a limit goes by its own `now()`, and by its snapshot before it had the lock: others may be quicker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import Compiled
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.statements import limits
from sa_jobqueue.worker.claim.limits import BUSY, Limits, transaction
from sa_jobqueue.worker.claim.rates import Rates, RolledBackError
from tests.fixtures.database import both_servers
from tests.fixtures.holders import lock_waiters
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import Start, until

_GIVEN: dict[str, Any] = dict.fromkeys(ClaimedJob._fields) | {"queue": "default", "fairness_key": "", "rate_cost": 2}
JOB = ClaimedJob(**_GIVEN | {"id": 1, "priority": 0, "scheduled_at": datetime.now(UTC)})
LIGHT = JOB._replace(rate_cost=1)
RULE = """
INSERT INTO queue (name, rate_limit, rate_period) VALUES ('default', 5, interval '1 hour')
"""
GATE = 1763


@pytest.fixture
async def asynchronous(engine: Engine, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    """Give a worker's engine, to a database whose default isolation level the test sets, and a queue with a rate."""
    write(engine, RULE)
    isolation = getattr(request, "param", "read committed").replace(" ", "\\ ")
    options = f"-c default_transaction_isolation={isolation}"
    asynchronous = create_async_engine(engine.url, isolation_level="AUTOCOMMIT", connect_args={"options": options})
    yield asynchronous
    await asynchronous.dispose()


async def test_a_claim_older_than_the_last_spend_of_its_rate_limit_starts_nothing_and_retries(
    asynchronous: AsyncEngine,
) -> None:
    late, quick = Limits(Job, "default", None), Limits(Job, "default", None)
    async with asynchronous.connect() as first, asynchronous.connect() as second:
        async with transaction(first):
            async with transaction(second):
                assert await quick.capacity(second, 9) == (5, {})
                await quick.rates.spend(second, [JOB])
            # Its jobs would start at a `now()` before that of the others, and an interval that ends there would miss those.
            assert await late.capacity(first, 9) == (0, {})
            assert late.retry_in == BUSY
        async with transaction(first):
            assert await late.capacity(first, 9) == (3, {})
            async with transaction(second):
                # Held by the first transaction: this one does not wait for it.
                assert await quick.capacity(second, 9) == (0, {})


def gated() -> Compiled:
    """Return `limits.lock` as it stops at a gate: its snapshot is taken then, and the row is not locked yet."""
    statement = re.sub(r"%\((\w+)\)s::([\w[\]]+)", r"CAST(:\1 AS \2)", str(Compiled(limits.lock(Job))._text))
    where = "WHERE queue.name = "
    assert where in statement
    gate = f"WHERE pg_advisory_xact_lock_shared({GATE}) IS NOT NULL AND queue.name = "
    return Compiled(text(statement.replace(where, gate)))


@both_servers
@pytest.mark.parametrize("asynchronous", ["read committed", "repeatable read"], indirect=True)
@pytest.mark.parametrize("spent_before", [0, 1])
async def test_rate_tokens_spent_between_snapshot_and_lock_are_not_spent_twice(
    engine: Engine, asynchronous: AsyncEngine, spent_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, quick = Limits(Job, "default", None), Limits(Job, "default", None)
    plain = late._lock
    async with asynchronous.connect() as first, asynchronous.connect() as second, asynchronous.connect() as third:
        for _ in range(spent_before):
            async with transaction(second):
                await quick.capacity(second, 9)
                await quick.rates.spend(second, [LIGHT])
        tokens_left = 5 - spent_before
        await third.execute(text(f"SELECT pg_advisory_lock({GATE})"))
        monkeypatch.setattr(late, "_lock", gated())

        async def claim() -> tuple[int, dict[QueueKey, int]]:
            async with transaction(first):
                capacity = await late.capacity(first, 9)
                await late.rates.spend(first, [LIGHT])
            return capacity

        claiming = asyncio.create_task(claim())
        await until(lambda: claiming.done() or lock_waiters(engine) > 0, description="it has its snapshot")
        async with transaction(second):
            assert await quick.capacity(second, 9) == (tokens_left, {})
            await quick.rates.spend(second, [LIGHT])
        await third.execute(text(f"SELECT pg_advisory_unlock({GATE})"))
        # The row is free, and unchanged; what the other has spent is not what this one saw.
        with pytest.raises(RolledBackError):
            await claiming
        monkeypatch.setattr(late, "_lock", plain)
        async with transaction(first):
            assert await late.capacity(first, 9) == (tokens_left - 1, {})


async def test_an_outdated_claim_is_repeated_and_counts_no_attempt(
    engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = JobQueue()
    outrun: list[int] = []
    spend = Rates.spend

    @queue.handler("test")
    async def work() -> None:
        pass

    async def late(self: Rates, connection: Any, claimed: Any) -> None:
        if not outrun:
            another = "UPDATE rate_state SET version = version + 1"
            write(engine, another)
        try:
            await spend(self, connection, claimed)
        except RolledBackError:
            outrun.append(len(claimed))
            raise

    with engine.begin() as connection:
        connection.execute(text(RULE))
        connection.execute(text("INSERT INTO rate_state (is_type, name, spent_at) VALUES (false, 'default', now())"))
    monkeypatch.setattr(Rates, "spend", late)
    ids = [jobs.add() for _ in range(3)]
    async with start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    assert outrun
    assert [jobs.get(job_id)["attempt"] for job_id in ids] == [1, 1, 1]


@pytest.mark.parametrize("asynchronous", ["read committed", "repeatable read"], indirect=True)
async def test_jobs_started_between_snapshot_and_lock_count_against_the_limit(
    engine: Engine, asynchronous: AsyncEngine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(engine, "UPDATE queue SET global_concurrency = 1")
    late = Limits(Job, "default", None)
    monkeypatch.setattr(late, "_lock", gated())
    async with asynchronous.connect() as first, asynchronous.connect() as second:
        await second.execute(text(f"SELECT pg_advisory_lock({GATE})"))

        async def ask() -> tuple[int, dict[QueueKey, int]]:
            async with transaction(first):
                return await late.capacity(first, 9)

        asking = asyncio.create_task(ask())
        await until(lambda: asking.done() or lock_waiters(engine) > 0, description="it has its snapshot")
        jobs.add(JobStatus.RUNNING)
        await second.execute(text(f"SELECT pg_advisory_unlock({GATE})"))
        assert await asking == (0, {})
