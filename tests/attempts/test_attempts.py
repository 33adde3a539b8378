"""What becomes of an attempt, by what its handler does; and that one bad job never stops the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AttemptContext,
    Backoff,
    Cancel,
    Discard,
    JobQueue,
    JobStatus,
    Retry,
    Snooze,
    Worker,
    cancel_jobs,
    events,
)
from sa_jobqueue.models import Job
from sa_jobqueue.operations import list_workers
from tests.fixtures.jobs import Jobs, enqueue, foreign
from tests.fixtures.transactions import call, rows, write
from tests.fixtures.workers import AT_ONCE, PATIENCE, Start, drain, is_listening, quick, until, working

pytestmark = pytest.mark.every_python


async def test_a_returned_value_is_the_output_and_none_is_json_null(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("sync")
    def sync(payload: dict[str, Any]) -> dict[str, Any]:
        return {"doubled": payload["n"] * 2}

    @queue.handler("nothing")
    async def nothing(payload: dict[str, Any]) -> None: ...

    doubled, empty = enqueue(engine, sync.job({"n": 4}), nothing.job({}))
    await drain(queue, engine)
    row = jobs.get(doubled)
    assert (row["status"], row["output"], row["leased_by"]) == (JobStatus.COMPLETED, {"doubled": 8}, None)
    assert row["completed_by"].startswith("tester:")
    assert row["completed_at"] == row["chain_completed_at"]
    kinds: dict[Any, str | None] = dict(rows(engine, "SELECT id, jsonb_typeof(output) FROM job"))
    assert kinds[empty] == "null"  # SQL NULL would mean: no output yet
    assert jobs.attempts(doubled) == []


async def test_a_failure_is_retried_and_recorded_until_the_attempts_are_used_up(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    before: list[tuple[Any, datetime | None]] = []

    @queue.handler("fails", max_attempts=3, retry=AT_ONCE)
    def fails(payload: dict[str, Any], ctx: AttemptContext) -> None:
        before.append((ctx.job.last_error, ctx.job.last_attempt_ended_at))
        raise ValueError(f"attempt {ctx.attempt}")

    (job_id,) = enqueue(engine, fails.job({}))
    log = await drain(queue, engine)
    while jobs.status(job_id) is JobStatus.PENDING:
        log = await drain(queue, engine)
    row = jobs.get(job_id)
    assert (row["status"], row["attempt"], row["last_error"]["message"]) == (JobStatus.DEAD, 3, "attempt 3")
    history = jobs.attempts(job_id)
    assert [(attempt["attempt"], attempt["outcome"], attempt["error"]["message"]) for attempt in history] == [
        (1, "failed", "attempt 1"),
        (2, "failed", "attempt 2"),
        (3, "failed", "attempt 3"),
    ]
    # Each attempt but the first knew how the one before had ended.
    assert before == [(None, None), *((attempt["error"], attempt["ended_at"]) for attempt in history[:2])]
    assert len({attempt["error_fingerprint"] for attempt in history}) == 1
    (dead_letter,) = jobs.dead_letters(job_id)
    assert (dead_letter["reason"], dead_letter["attempts"], dead_letter["error"]["type"]) == ("exhausted", 3, "ValueError")
    assert "raise ValueError" in dead_letter["error"]["traceback"]
    assert "executor.py" not in dead_letter["error"]["traceback"]
    assert len(log.of(events.JobDied)) == 1


async def test_snooze_discard_and_cancel_each_end_an_attempt_with_their_own_outcome(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("signals", max_attempts=1)
    async def signals(payload: dict[str, Any]) -> None:
        raise {"snooze": Snooze(timedelta(hours=1)), "discard": Discard("no use"), "cancel": Cancel()}[payload["what"]]

    snoozed, discarded, cancelled = enqueue(
        engine, *(signals.job({"what": signal}) for signal in ("snooze", "discard", "cancel"))
    )
    await drain(queue, engine)
    row = jobs.get(snoozed)
    # Not counted, though `attempt` is the fence and only grows.
    assert (row["status"], row["attempt"], row["max_attempts"]) == (JobStatus.PENDING, 1, 2)
    assert jobs.attempts(snoozed)[0]["outcome"] == "snoozed"
    assert (jobs.status(discarded), jobs.dead_letters(discarded)[0]["reason"]) == (JobStatus.DEAD, "discarded")
    assert jobs.dead_letters(discarded)[0]["error"]["message"] == "no use"
    assert (jobs.status(cancelled), jobs.dead_letters(cancelled)) == (JobStatus.CANCELLED, [])


async def test_a_handler_sets_the_time_of_its_next_attempt_with_retry_or_snooze(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    at = datetime(2099, 1, 1, tzinfo=UTC)
    signals: dict[str, Callable[[], Exception]] = {
        "retry for": lambda: Retry(timedelta(hours=1), reason="closed"),
        "retry until": lambda: Retry(at=at, reason="closed"),
        "snooze until": lambda: Snooze(at=at),
        "retry at once": lambda: Retry(at=datetime(2020, 1, 1, tzinfo=UTC), reason="closed"),
    }

    @queue.handler("signals", max_attempts=2, retry=AT_ONCE)
    async def raises(payload: str) -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise signals[payload]() from error

    ids = dict(zip(signals, enqueue(engine, *(raises.job(name) for name in signals)), strict=True))
    log = await drain(queue, engine)
    rows = {name: jobs.get(job_id) for name, job_id in ids.items()}
    assert timedelta(minutes=59) < rows["retry for"]["scheduled_at"] - rows["retry for"]["started_at"]
    assert rows["retry until"]["scheduled_at"] == rows["snooze until"]["scheduled_at"] == at
    assert {event.at for event in log.of(events.JobRescheduled)} >= {None, at}
    # A retry counts, a snooze does not.
    assert {name: row["max_attempts"] for name, row in rows.items()} == dict.fromkeys(signals, 2) | {"snooze until": 3}
    (attempt,) = jobs.attempts(ids["retry until"])
    assert (attempt["outcome"], attempt["error"]["message"]) == ("failed", "closed")
    assert "ConnectionError: refused" in attempt["error"]["traceback"]
    # The last one that it had: dead, whatever was asked for.
    assert (rows["retry at once"]["status"], rows["retry at once"]["attempt"]) == (JobStatus.DEAD, 2)
    (dead_letter,) = jobs.dead_letters()
    assert (dead_letter["job_id"], dead_letter["reason"], dead_letter["error"]["message"]) == (
        ids["retry at once"],
        "exhausted",
        "closed",
    )


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_an_attempt_past_its_timeout_is_cancelled_and_dies_as_timed_out(engine: Engine, jobs: Jobs, mode: str) -> None:
    queue = JobQueue()
    reasons: list[str | None] = []

    @queue.handler("async", max_attempts=1, timeout=timedelta(milliseconds=100))
    async def asynchronous(payload: dict[str, Any], ctx: AttemptContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append("cancelled")

    @queue.handler("sync", max_attempts=1, timeout=timedelta(milliseconds=100))
    def synchronous(payload: dict[str, Any], ctx: AttemptContext) -> None:
        assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        reasons.append(ctx.cancel_reason)

    (job_id,) = enqueue(engine, queue.job(mode, {}))
    await drain(queue, engine)
    assert len(reasons) == 1
    assert jobs.status(job_id) is JobStatus.DEAD
    assert jobs.dead_letters(job_id)[0]["reason"] == "timed_out"
    assert jobs.attempts(job_id)[0]["outcome"] == "timed_out"


@pytest.mark.parametrize("kind", ["alone", "in_a_batch"])
async def test_a_stuck_thread_is_abandoned_and_its_writes_are_rolled_back(engine: Engine, jobs: Jobs, kind: str) -> None:
    queue = JobQueue()
    release, returned = threading.Event(), threading.Event()
    write(engine, "CREATE TABLE effect (n int)")

    def work(session: Session) -> None:
        session.execute(text("INSERT INTO effect VALUES (1)"))
        release.wait(PATIENCE)
        returned.set()

    @queue.handler("alone", max_attempts=1, timeout=timedelta(milliseconds=50))
    def alone(payload: dict[str, Any], session: Session) -> None:
        work(session)

    @queue.batch_handler("in_a_batch", max_size=2, max_wait=timedelta(0), max_attempts=1, timeout=timedelta(milliseconds=50))
    def in_a_batch(payloads: list[dict[str, Any]], session: Session) -> None:
        work(session)

    (job_id,) = enqueue(engine, queue.job(kind, {}))
    worker = Worker(queue, engine, options=quick(concurrency=2, cancel_timeout=timedelta(milliseconds=50)))
    async with working(worker):
        await until(lambda: jobs.status(job_id) is JobStatus.DEAD, description="the attempt ends")
        with Session(engine) as session:
            await until(
                lambda: [worker.stuck_threads for worker in list_workers(session)] == [1], description="a heartbeat says so"
            )
            assert [worker.used for worker in list_workers(session)] == [1]
    assert worker.has_stuck_threads
    release.set()
    await until(lambda: returned.is_set() and not worker.has_stuck_threads, description="the thread came back")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM effect")).scalar_one() == 0
        # The worker has stopped: what its thread does then opens no connection that would stay open.
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert connection.execute(text(f"{sessions} AND state LIKE 'idle in%'")).scalar_one() == 0

    def are_gone() -> bool:
        with engine.connect() as connection:
            workers_sessions = text(f"{sessions} AND application_name LIKE 'sa_jobqueue %'")
            return int(connection.execute(workers_sessions).scalar_one()) == 0

    await until(are_gone, description="the server has ended the worker's sessions")
    assert jobs.status(job_id) is JobStatus.DEAD


async def test_an_attempt_can_extend_its_timeout(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("slow", max_attempts=1, timeout=timedelta(milliseconds=200))
    async def slow(payload: dict[str, Any], ctx: AttemptContext) -> float:
        ctx.extend(timedelta(minutes=5))
        started = time.monotonic()
        await asyncio.sleep(0.4)  # past its first timeout
        await until(lambda: jobs.get(ctx.job.id)["leased_until"] > ctx.job.started_at + timedelta(minutes=5))
        return time.monotonic() - started

    (job_id,) = enqueue(engine, slow.job({}))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_cancelling_a_running_job_stops_its_handler(engine: Engine, jobs: Jobs, start: Start, mode: str) -> None:
    queue = JobQueue()

    @queue.handler("async")
    async def asynchronous(payload: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    @queue.handler("sync")
    def synchronous(payload: dict[str, Any], ctx: AttemptContext) -> None:
        assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))

    (job_id,) = enqueue(engine, queue.job(mode, {}))
    # Only a notification is that fast: this worker polls once in ten minutes.
    async with start(queue, poll_interval=timedelta(minutes=10)) as log:
        await log.until(events.JobStarted)
        await until(lambda: is_listening(engine))
        call(engine, cancel_jobs, [job_id])
        await log.until(events.AttemptLost)
    assert jobs.status(job_id) is JobStatus.CANCELLED


async def test_an_open_transaction_on_one_job_does_not_delay_completion_of_others(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue = JobQueue()
    running = asyncio.Event()
    release = asyncio.Event()

    @queue.handler("waits")
    async def waits(payload: dict[str, Any]) -> None:
        running.set()
        await release.wait()

    held_job, *other_jobs = enqueue(engine, *(waits.job({}) for _ in range(5)))
    async with start(queue) as log:
        await log.until(events.JobStarted, 5)
        with Session(engine) as session:
            cancel_jobs(session, [held_job])  # not committed yet
            release.set()
            await log.until(events.JobCompleted, 4)
            assert jobs.status(held_job) is JobStatus.RUNNING
            session.rollback()
        await log.until(events.JobCompleted, 5)
    assert {jobs.status(job_id) for job_id in [held_job, *other_jobs]} == {JobStatus.COMPLETED}
    assert log.of(events.AttemptLost) == []


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_one_bad_job_never_stops_the_others(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    def broken_policy(attempt: int, error: BaseException) -> timedelta:
        raise ZeroDivisionError

    @queue.handler("bad", max_attempts=1)
    async def bad(payload: dict[str, Any]) -> Any:
        match payload["how"]:
            case "object":
                return object()
            case "nan":
                return float("nan")
            case "huge":
                return "x" * 2_000_000
            case "exit":
                raise SystemExit(3)
            case "cancelled":
                raise asyncio.CancelledError
            case "unprintable":
                raise UnprintableError
            case "nul":
                raise ValueError("a\x00b\udcff")
            case "deep":
                deep: list[Any] = []
                for _ in range(100_000):
                    deep = [deep]
                return deep

    @queue.handler("bad_thread", max_attempts=1)
    def bad_thread(payload: dict[str, Any]) -> None:
        raise SystemExit(3)

    @queue.handler("interrupts", max_attempts=1)
    def interrupts(payload: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    # Attempts enough: the default backoff it falls back to may by chance wait for next to nothing.
    @queue.handler("bad_policy", max_attempts=20, retry=broken_policy)
    async def bad_policy(payload: dict[str, Any]) -> None:
        raise ValueError("with a broken policy")

    @queue.handler("typed")
    async def typed(payload: int) -> None: ...

    @queue.handler("good")
    async def good(payload: dict[str, Any]) -> None: ...

    ways = ["object", "nan", "huge", "exit", "cancelled", "unprintable", "nul", "deep"]
    bad_ids = enqueue(engine, *(bad.job({"how": how}) for how in ways), bad_thread.job({}))
    (retried,) = enqueue(engine, bad_policy.job({}))
    (interrupted,) = enqueue(engine, interrupts.job({}))
    (unfit,) = enqueue(engine, foreign("typed", {"not": "a number"}))
    (newer,) = enqueue(engine, Job("typed", 1, input_version=7))
    (unknown,) = enqueue(engine, Job("nobody_knows", {}))
    good_ids = enqueue(engine, *(good.job({}) for _ in range(20)))
    await drain(queue, engine, concurrency=4)

    statuses = jobs.statuses()
    assert {statuses[job_id] for job_id in good_ids} == {JobStatus.COMPLETED}
    assert {how: statuses[job_id] for how, job_id in zip([*ways, "thread"], bad_ids, strict=True)} == dict.fromkeys(
        [*ways, "thread"], JobStatus.DEAD
    )
    messages = {how: jobs.dead_letters(job_id)[0]["error"]["message"] for how, job_id in zip(ways, bad_ids, strict=False)}
    assert "output: is of type object, which is not JSON" in messages["object"]
    assert "output: is nan" in messages["nan"]
    assert "over the limit" in messages["huge"]
    assert messages["nul"] == "a\\x00b\\udcff"
    assert statuses[retried] is JobStatus.PENDING
    assert jobs.dead_letters(interrupted)[0]["error"]["type"] == "KeyboardInterrupt"
    assert "retry policy failed" in jobs.attempts(retried)[0]["error"]["traceback"]
    assert jobs.dead_letters(unfit)[0]["reason"] == "invalid_input"
    assert {statuses[newer], statuses[unknown]} == {JobStatus.PENDING}  # another worker may know them


async def test_due_jobs_of_types_without_a_handler_are_reported(engine: Engine, start: Start) -> None:
    queue = JobQueue()

    @queue.handler("known")
    async def known(payload: dict[str, Any]) -> None: ...

    enqueue(engine, Job("a_stranger", {}), known.job({}))
    async with start(queue) as log:
        (event, *_) = await log.until(events.UnknownTypesPending)
        await log.until(events.JobCompleted)
    assert event.type_names == ("a_stranger",)


async def test_payloads_of_older_versions_are_upcast(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("greet", version=3)
    async def greet(payload: dict[str, Any]) -> str:
        return f"{payload['first']} {payload['last']} {payload['n']}"

    @greet.upcast(1)
    def split(payload: dict[str, Any]) -> dict[str, Any]:
        first, last = payload["name"].split()
        return {"first": first, "last": last}

    @greet.upcast(2)
    def count(payload: dict[str, Any]) -> dict[str, Any]:
        return payload | {"n": 1}

    old, broken = enqueue(
        engine, Job("greet", {"name": "Ada Lovelace"}, input_version=1), Job("greet", {"name": "Ada"}, input_version=1)
    )
    await drain(queue, engine)
    assert jobs.get(old)["output"] == "Ada Lovelace 1"
    assert jobs.dead_letters(broken)[0]["reason"] == "invalid_input"


async def test_due_jobs_in_unserved_queues_are_reported(engine: Engine, start: Start) -> None:
    queue = JobQueue()

    @queue.handler("known")
    async def known(payload: dict[str, Any]) -> None: ...

    enqueue(engine, *(known.job({}, queue=name) for name in ("b", "a", "default", "b")))
    enqueue(engine, known.job({}, queue="later", delay=timedelta(hours=1)))
    async with start(queue) as log:
        (event, *_) = await log.until(events.UnservedQueues)
    assert event.queue_names == ("a", "b")


async def test_a_rescheduled_job_emits_an_event_with_its_delay(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("fails", retry=Backoff(base=timedelta(minutes=1), jitter=False))
    async def fails(payload: dict[str, Any], session: AsyncSession) -> None:
        raise ValueError

    enqueue(engine, fails.job({}))
    log = await drain(queue, engine)
    (event,) = log.of(events.JobRescheduled)
    assert (event.attempt, event.delay) == (1, timedelta(minutes=1))
