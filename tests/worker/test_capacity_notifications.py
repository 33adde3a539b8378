"""Capacity freed by one worker under a limit is used by another at once; nothing is notified if no worker waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, cancel_jobs
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import Discard, Snooze
from sa_jobqueue.worker.claim import arrivals, claimer, counting, freed, limits
from sa_jobqueue.worker.claim.claimer import Claimer
from sa_jobqueue.worker.finish.completer import Completer
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
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
    """Disable polls, so that a slot is found by a notification or never; return a check for how many workers rest."""
    monkeypatch.setattr(claimer, "_SPIN_WINDOW", 0.0)
    for module in (limits, claimer):
        monkeypatch.setattr(module, "MAX_BACKOFF", NEVER.total_seconds())
        monkeypatch.setattr(module, "FULL", NEVER.total_seconds())
    sleeping: set[Claimer] = set()
    sleep = Claimer._sleep

    async def watched(self: Claimer) -> None:
        sleeping.add(self)
        await sleep(self)
        sleeping.discard(self)

    monkeypatch.setattr(Claimer, "_sleep", watched)
    return lambda workers: sum(not one._woken.is_set() for one in list(sleeping)) == workers


def run(engine: Engine, statement: str) -> None:
    """Run a statement in a transaction of its own."""
    with engine.begin() as connection:
        connection.execute(text(statement))


@asynccontextmanager
async def at_work(engine: Engine, gate: Gate, queue: str = "default") -> AsyncIterator[Worker]:
    """Run a worker of a queue that polls only after a notification, and is already listening."""
    worker = Worker(gate.jobs, engine, options=quick(poll_interval=NEVER, queues=[queue]))
    async with working(worker):
        await until(lambda: worker.vitals.is_listening is True, what="it listens")
        yield worker


@pytest.mark.parametrize("kind", LIMITS)
async def test_capacity_freed_by_a_stopping_worker_is_used_by_another_at_once(
    kind: str, engine: Engine, jobs: Jobs, asleep: Callable[[int], bool]
) -> None:
    run(engine, LIMITS[kind])
    key = "1" if kind in {"key", "part"} else ""
    one, other = Gate(), Gate()
    jobs.add(input="first", fairness_key=key)
    async with at_work(engine, one) as stopping:
        await one.begins("first")
        jobs.add(input="second", fairness_key=key)
        async with at_work(engine, other):
            await until(lambda: asleep(2), what="no worker finds capacity")
            stopping.stop()
            one.release("first")
            # Without the notification it is started in five minutes.
            await other.begins("second")
            other.release("second")


@pytest.mark.parametrize("end", ["completed", "discarded", "snoozed"])
async def test_capacity_a_worker_cannot_use_itself_is_used_by_another_at_once(
    end: str, engine: Engine, jobs: Jobs, asleep: Callable[[int], bool]
) -> None:
    run(engine, LIMITS["type"])
    one, other = Gate(), Gate()
    jobs.add(input=end, queue="here")
    jobs.add(input="second", queue="there")
    async with at_work(engine, one, "here"):
        await one.begins(end)
        async with at_work(engine, other, "there"):
            await until(lambda: asleep(2), what="no worker finds capacity")
            one.release(end)
            await other.begins("second")
            other.release("second")


async def test_capacity_is_offered_even_if_a_claim_counted_the_end_before_the_worker(
    engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That claim found room, as if the limit had not been reached, and no other claim followed soon enough."""
    monkeypatch.setattr(freed, "TRUSTED", 0.0)
    monkeypatch.setattr(freed, "OWN_TURN", 0.0)
    is_written, is_counted = asyncio.Event(), asyncio.Event()
    write, claimed, claims = Completer._write_finished, freed.Freed.claimed, Claimer.run
    claimers: list[Claimer] = []

    async def write_late(self: Completer, *given: Any) -> Any:
        found = await write(self, *given)
        is_written.set()
        jobs.add(queue="here", ordering_key="k", input="waits")  # has it count, and start nothing
        for one in claimers:  # as if it were time to ask again
            for partition in one._lanes.partitions.every if "here" in one._options.limits else ():
                partition.full_until = 0.0
                one.wake()
        async with asyncio.timeout(PATIENCE):
            await is_counted.wait()
        return found

    async def noted(self: Claimer) -> None:
        claimers.append(self)
        await claims(self)

    def watched(self: freed.Freed, under: limits.Limits, before: Counter[limits.Key], started: Any) -> None:
        claimed(self, under, before, started)
        if is_written.is_set() and under.counted == {(True, "test"): (0, 1)}:
            is_counted.set()

    monkeypatch.setattr(Completer, "_write_finished", write_late)
    monkeypatch.setattr(freed.Freed, "claimed", watched)
    monkeypatch.setattr(Claimer, "run", noted)
    run(engine, LIMITS["type"])
    one, other = Gate(), Gate()
    jobs.add_worker("third:1")
    jobs.add(JobStatus.RUNNING, worker_id="third:1", queue="elsewhere", type_name="other", ordering_key="k")
    jobs.add(input="snoozed", queue="here")
    jobs.add(input="second", queue="there")
    async with at_work(engine, one, "here"):
        await one.begins("snoozed")
        async with at_work(engine, other, "there"):
            await until(lambda: asleep(2), what="both rest")
            one.release("snoozed")
            await other.begins("second")
            other.release("second")


async def test_capacity_freed_while_another_worker_counts_is_used_by_it_at_once(
    engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification arrives after its statement has counted, and before it knows that it has found no room."""
    is_armed, is_counted, is_notified = asyncio.Event(), asyncio.Event(), asyncio.Event()
    counters_of_other: set[Any] = set()
    count, capacity_freed, claim_under = counting.Running.count, Claimer.capacity_freed, Claimer._claim_under

    async def claims(self: Claimer, connection: Any, partition: Any, *given: Any) -> Any:
        if "there" in self._options.limits:
            counters_of_other.add(partition.limits._running)
        return await claim_under(self, connection, partition, *given)

    async def count_late(self: counting.Running, *given: Any, **more: Any) -> Any:
        found = await count(self, *given, **more)
        if self in counters_of_other and is_armed.is_set() and not is_counted.is_set():
            is_counted.set()
            async with asyncio.timeout(PATIENCE):
                await is_notified.wait()
        return found

    def notified(self: Claimer, *given: Any) -> None:
        capacity_freed(self, *given)
        if "there" in self._options.limits and is_counted.is_set():
            is_notified.set()

    monkeypatch.setattr(Claimer, "_claim_under", claims)
    monkeypatch.setattr(counting.Running, "count", count_late)
    monkeypatch.setattr(Claimer, "capacity_freed", notified)
    monkeypatch.setattr(Claimer, "job_ended", lambda *given: None)  # one notification, sent below
    run(engine, LIMITS["type"])
    one, other = Gate(), Gate()
    jobs.add(input="first", queue="here")
    jobs.add(input="second", queue="there")
    async with at_work(engine, one, "here"):
        await one.begins("first")
        async with at_work(engine, other, "there"):
            await until(lambda: asleep(2), what="no worker finds capacity")
            is_armed.set()
            run(engine, "SELECT pg_notify('.job:freed', 'type test')")  # so that it counts once more
            async with asyncio.timeout(PATIENCE):
                await is_counted.wait()
            one.release("first")
            await until(lambda: JobStatus.COMPLETED in jobs.statuses().values(), what="the first ends")
            run(engine, "SELECT pg_notify('.job:freed', 'type test')")
            await other.begins("second")
            other.release("second")


async def test_a_conflicting_claim_is_retried_even_if_its_pause_ends_before_the_worker_sleeps(
    engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine, the four milliseconds are over before it rests: it must not rest until the next poll."""
    monkeypatch.setattr(limits, "BUSY", 1e-9)
    for name in ("FULL_SCAN_EVERY", "FULL_SCAN_IDLE"):
        monkeypatch.setattr(arrivals, name, NEVER.total_seconds())
    met, capacity = asyncio.Event(), limits.Limits.capacity

    async def watched(self: limits.Limits, *given: Any) -> Any:
        found = await capacity(self, *given)
        if self.retry_in == limits.BUSY:
            met.set()
        return found

    monkeypatch.setattr(limits.Limits, "capacity", watched)
    run(engine, LIMITS["type"])
    gate = Gate()
    jobs.add(input="first")
    with engine.connect() as other:
        other.execute(text("SELECT FROM job_type FOR UPDATE"))
        async with at_work(engine, gate):
            async with asyncio.timeout(PATIENCE):
                await met.wait()
            await until(lambda: asleep(1), what="it rests")
            other.rollback()
            await gate.begins("first")
            gate.release("first")


@pytest.mark.parametrize(("kind", "queue"), [("limit", "here"), ("limit", "there"), ("ordering key", "here")])
async def test_cancelling_a_running_job_frees_its_capacity_at_once(
    kind: str, queue: str, engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker went on counting it among what it runs: it asked for room ten times a second at most, until it ended."""
    monkeypatch.setattr(freed, "TRUSTED", NEVER.total_seconds())
    if kind == "limit":
        run(engine, LIMITS["type"])
    key = "k" if kind == "ordering key" else None
    one, other = Gate(), Gate()
    first = jobs.add(input="first", queue="here", ordering_key=key)
    async with at_work(engine, one, "here"):
        await one.begins("first")
        async with at_work(engine, other, "there"):
            jobs.add(input="second", queue=queue, ordering_key=key)
            run(engine, f"SELECT pg_notify('.job:due', '{queue}')")
            await until(lambda: asleep(2), what="no worker may start it")
            with Session(engine) as session, session.begin():
                cancel_jobs(session, [first])
            await (one if queue == "here" else other).begins("second")
            one.release("second")
            other.release("second")


async def test_a_worker_stops_counting_jobs_whose_end_was_not_reported(
    engine: Engine, jobs: Jobs, asleep: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freed, "TRUSTED", NEVER.total_seconds())
    monkeypatch.setattr(claimer, "_ORPHANS_EVERY", 0.0)
    monkeypatch.setattr(Claimer, "job_ended", lambda *given: None)  # what an outage while an end is written comes to
    run(engine, LIMITS["queue"])
    gate = Gate()
    jobs.add(input="first")
    async with at_work(engine, gate):
        await gate.begins("first")
        gate.release("first", "second")
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, what="the first ends")
        jobs.add(input="second")
        run(engine, "SELECT pg_notify('.job:due', 'default')")
        await gate.begins("second")


async def test_a_worker_that_reuses_its_own_capacity_notifies_no_other(
    engine: Engine, jobs: Jobs, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freed, "OWN_TURN", NEVER.total_seconds())  # however slow the machine is
    run(engine, LIMITS["queue"])
    gate = Gate()
    for number in range(20):
        jobs.add(input=str(number))
        gate.release(str(number))
    async with at_work(engine, gate):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, what="every job completes")
    # Of 20 slots the last is left to others.
    assert [payload for topic, payload in notifications.seen() if topic == "freed"] == ["queue default"]


async def test_capacity_is_notified_only_when_the_limit_was_reached(
    engine: Engine, jobs: Jobs, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freed, "OWN_TURN", 0.0)  # so that it never waits for its own claim to count
    for most, seen in ((100, []), (1, ["queue below-1"])):
        run(engine, f"INSERT INTO queue (name, global_concurrency) VALUES ('below-{most}', {most})")
        gate = Gate()
        jobs.add(input="only", queue=f"below-{most}")
        gate.release("only")
        async with at_work(engine, gate, f"below-{most}"):
            await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, what="the job completes")
        assert [payload for topic, payload in notifications.seen() if topic == "freed"] == seen


async def test_a_worker_running_all_the_limit_allows_does_not_ask_for_more(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, asleep: Callable[[int], bool]
) -> None:
    monkeypatch.setattr(freed, "TRUSTED", NEVER.total_seconds())
    run(engine, LIMITS["queue"])
    asked, capacity = [], limits.Limits.capacity

    async def watched(self: limits.Limits, *given: Any) -> tuple[int, dict[str, int]]:
        asked.append(self)
        return await capacity(self, *given)

    monkeypatch.setattr(limits.Limits, "capacity", watched)
    gate = Gate()
    jobs.add(input="first")
    jobs.add(input="second")
    async with at_work(engine, gate):
        await gate.begins("first")
        await until(lambda: asleep(1), what="it rests")
        before = len(asked)
        for _ in range(3):
            run(engine, "SELECT pg_notify('.job:due', 'default')")
            await until(lambda: asleep(1), what="it rests")
        assert len(asked) == before
        gate.release("first", "second")
        await gate.begins("second")
    assert len(asked) > before


async def test_capacity_freed_while_a_claim_counts_is_left_to_that_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed, "OWN_TURN", 0.0)
    notified: list[limits.Key] = []
    slots = freed.Freed(notified.extend)
    under = limits.Limits(Job, "default", None)
    under._most = {(False, "default"): 2}

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    with slots.own_turn():
        started: list[Any] = [SimpleNamespace(id=number, queue="default", queue_key="default") for number in range(2)]
        slots.claimed(under, slots.before(under), started)
        before = slots.before(under)
        for job in started:
            assert slots.end(job.id) == "default"
        await turns()
        assert notified == []
        slots.claimed(under, before, [])  # it counted neither, for both ended after it had begun
        await turns()
    assert notified == [(False, "default")]
    assert under.held == 0
