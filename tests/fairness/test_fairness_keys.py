"""Customers share a queue: no flood of one keeps another's first job waiting, and every job of a fairness key is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Continuation, Job, JobQueue, JobStatus, Worker, operations
from sa_jobqueue.operations.explaining import Cause
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.worker.claim import arrivals
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, Start, quick, until

_FILL = """
INSERT INTO job (id, chain_id, type_name, chain_type_name, queue, fairness_key, scheduled_at, input)
SELECT id, id, 'test', 'test', :queue, key, now() - interval '1 minute', to_jsonb(:queue || '/' || key)
FROM (SELECT job_uuid7() AS id, :key || (n % :keys) AS key FROM generate_series(1, :count) AS n) AS made
"""


def fill(engine: Engine, queue: str, key: str = "", *, count: int, keys: int = 1) -> None:
    """Enqueue many jobs for keys in turn, all due, without a notification. Their payload is `queue/key`."""
    write(engine, _FILL, {"queue": queue, "key": key, "count": count, "keys": keys})


def recorder() -> tuple[JobQueue[Any], list[str]]:
    queue, runs = JobQueue(), []

    @queue.handler("test", retry=lambda attempt, error: timedelta(milliseconds=20))
    async def note(payload: str) -> None:
        runs.append(payload)
        if payload == "fails once" and runs.count(payload) == 1:
            raise ValueError(payload)

    return queue, runs


@pytest.fixture
def no_full_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable full scans after the first: fairness keys are found by catch-up alone."""
    monkeypatch.setattr(arrivals, "FULL_SCAN_EVERY", 1e6)
    monkeypatch.setattr(arrivals, "FULL_SCAN_IDLE", 1e6)


@pytest.mark.slow
@both_servers
async def test_a_flood_of_one_fairness_key_does_not_delay_other_keys(engine: Engine) -> None:
    queue, runs = recorder()
    fill(engine, "default", "flood", count=1500)
    fill(engine, "default", "few", count=40, keys=20)
    fill(engine, "other", "few", count=40, keys=20)
    await asyncio.wait_for(
        Worker(queue, engine, options=quick(queues=["default", "other"], concurrency=20)).run_until_idle(), PATIENCE
    )
    assert len(runs) == 1580
    # Two rounds of 21 keys in one queue, of 20 in the other, side by side.
    few = [place for place, name in enumerate(runs) if not name.startswith("default/flood")]
    assert max(few) < 150


@pytest.mark.long
async def test_fairness_keys_share_a_queue_evenly_across_workers(engine: Engine) -> None:
    queue, runs = recorder()
    fill(engine, "default", count=2400, keys=4)
    tasks = [asyncio.create_task(Worker(queue, engine, options=quick(concurrency=8)).run_until_idle()) for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert len(runs) == 2400
    counts = Counter(runs[:1200])
    assert max(counts.values()) - min(counts.values()) <= 2 * 3 * 8


async def test_late_arrivals_are_found_in_known_and_new_fairness_keys(
    engine: Engine, start: Start, no_full_scan: None
) -> None:
    queue, runs = recorder()
    with Session(engine) as late, late.begin():
        late.add(Job("test", "before", fairness_key="known"))
        late.add(Job("test", "before", fairness_key="new"))
        late.flush()
        fill(engine, "default", "known", count=50)
        async with start(queue, poll_interval=timedelta(seconds=60)):
            await until(lambda: len(runs) == 50, description="the known fairness key is empty")
            late.commit()
            # Without the late arrival of the one and the new lane of the other, they wait for the next full scan.
            await until(lambda: runs.count("before") == 2, description="both are found")


@pytest.mark.slow
async def test_a_new_fairness_key_is_served_beside_floods_in_what_is_paused_or_not_served(
    engine: Engine, start: Start, monkeypatch: pytest.MonkeyPatch, no_full_scan: None
) -> None:
    # No full scan after a flood either: what a catch-up leaves out is never found.
    monkeypatch.setattr(arrivals, "_AFTER_A_CUT", 1e9)
    queue, runs = recorder()
    with Session(engine) as session, session.begin():
        operations.pause_queues(session, ["default"], fairness_key="paused0")
        operations.upsert_queue(session, QueueSettings(name="paused"))
        operations.pause_queues(session, ["paused"])
    async with start(queue, queues=["default", "paused"], poll_interval=timedelta(milliseconds=50)):
        for round_ in range(3):
            for name, key, keys in (("paused", "", 500), ("elsewhere", "", 500), ("default", "paused", 1)):
                fill(engine, name, key, count=4000, keys=keys)
            fill(engine, "default", f"new{round_}-", count=1)
            await until(lambda expected=round_ + 1: len(runs) == expected, description="the new key")  # type: ignore[misc]
    assert runs == [f"default/new{round_}-0" for round_ in range(3)]


_FAIL_ONCE = """
CREATE SEQUENCE failures;
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF nextval('failures') = 1 THEN RAISE EXCEPTION 'once'; END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER fail_once AFTER UPDATE ON job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.status = 'running') EXECUTE FUNCTION fail_once()
"""


async def test_jobs_of_a_fairness_key_are_found_again_after_a_failed_claim(
    engine: Engine, start: Start, no_full_scan: None
) -> None:
    queue, runs = recorder()
    fill(engine, "default", count=3)
    with engine.begin() as connection:
        connection.execute(text(_FAIL_ONCE))
        # So that a claim is a transaction of several statements.
        connection.execute(text("INSERT INTO queue (name, concurrency_per_key) VALUES ('default', 50)"))
    async with start(queue, poll_interval=timedelta(milliseconds=50)):
        # Had their cursors passed what was rolled back, it would not be seen without a new full scan.
        await until(lambda: len(runs) == 3, description="all of them")


async def test_scheduled_jobs_and_retries_of_a_fairness_key_start_when_due(
    engine: Engine, jobs: Jobs, start: Start, no_full_scan: None
) -> None:
    queue, runs = recorder()
    jobs.add(queue="default", fairness_key="a", input="there before", due_in=0.3)
    fill(engine, "default", "a", count=1)
    async with start(queue, poll_interval=timedelta(seconds=60)):
        await until(lambda: len(runs) >= 1, description="the first one")
        with Session(engine) as session, session.begin():
            session.add(Job("test", "delayed", fairness_key="b", delay=timedelta(seconds=0.4)))
            session.add(Job("test", "fails once", fairness_key="c"))
        await until(lambda: len(runs) == 5, description="all of them")
    assert Counter(runs) == {"default/a0": 1, "there before": 1, "delayed": 1, "fails once": 2}
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}


async def test_pausing_a_queue_pauses_all_its_fairness_keys_and_pausing_one_only_that_key(
    engine: Engine, start: Start
) -> None:
    queue, runs = recorder()
    with Session(engine) as session, session.begin():
        operations.upsert_queue(session, QueueSettings(name="other"))
        operations.pause_queues(session, ["other"])
        operations.pause_queues(session, ["default"], fairness_key="1")
    async with start(queue, queues=["default", "other"]):
        fill(engine, "default", count=30, keys=3)
        fill(engine, "other", count=30, keys=3)
        await until(lambda: len(runs) >= 20, description="the fairness keys that are not paused")
        assert set(runs) == {"default/0", "default/2"}
        with Session(engine) as session, session.begin():
            operations.resume_queues(session, ["other"])
            operations.resume_queues(session, ["default"], fairness_key="1")
        await until(lambda: len(runs) == 60, description="all")


def test_explain_names_a_fairness_keys_limit_and_its_queues_pause(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("free:1", concurrency=5)
    jobs.add(JobStatus.RUNNING, queue="default", fairness_key="a")
    limited_id, free = jobs.add(queue="default", fairness_key="a"), jobs.add(queue="default", fairness_key="b")
    write(engine, "INSERT INTO queue (name, concurrency_per_key) VALUES ('default', 1)")
    with Session(engine) as session:
        explanation = operations.explain_job(session, limited_id)
        assert (explanation.cause, explanation.evidence["global_concurrency"]) == (Cause.LIMITED, 1)
        assert "fairness key 'a' of queue 'default' runs 1 job," in explanation.sentence
        assert "sa-jobqueue queues set default --fairness-key a --global-concurrency" in explanation.sentence
        assert operations.explain_job(session, free).cause not in {Cause.LIMITED, Cause.QUEUE_UNSERVED}
        operations.pause_queues(session, ["default"])
        assert operations.explain_job(session, free).cause is Cause.QUEUE_PAUSED


@pytest.mark.parametrize("by", ["worker", "row"])
async def test_a_queue_limit_spans_all_its_fairness_keys(engine: Engine, by: str) -> None:
    queue, running, most = JobQueue(), 0, 0

    @queue.handler("test")
    async def work(payload: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    if by == "row":
        write(engine, "INSERT INTO queue (name, global_concurrency) VALUES ('default', 3)")
    fill(engine, "default", count=40, keys=10)
    limits = {"default": 3} if by == "worker" else ["default"]
    await asyncio.wait_for(Worker(queue, engine, options=quick(queues=limits, concurrency=9)).run_until_idle(), PATIENCE)
    assert most == 3


@pytest.mark.parametrize("slots_of", ["queue", "type"])
async def test_a_worker_with_no_free_slot_for_any_fairness_key_does_not_poll(
    engine: Engine, start: Start, monkeypatch: pytest.MonkeyPatch, slots_of: str
) -> None:
    queue, running, release, polls = JobQueue(), asyncio.Event(), asyncio.Event(), 0
    catch_up = arrivals.Arrivals.catch_up

    async def counted(*arguments: Any, **options: Any) -> None:
        nonlocal polls
        polls += 1
        await catch_up(*arguments, **options)

    monkeypatch.setattr(arrivals.Arrivals, "catch_up", counted)

    @queue.handler("test", concurrency=1 if slots_of == "type" else None)
    async def work(payload: str) -> None:
        running.set()
        await release.wait()

    @queue.handler("other")
    async def other() -> None: ...

    fill(engine, "default", count=40, keys=10)
    queue_slots = {"default": 1} if slots_of == "queue" else ["default"]
    heartbeats = "SELECT count(*) FROM worker WHERE heartbeat_at > started_at + interval '1 second'"
    async with start(queue, queues=queue_slots, concurrency=9, poll_interval=timedelta(seconds=60)):
        await asyncio.wait_for(running.wait(), PATIENCE)

        def has_worked_for_a_second() -> bool:
            with engine.connect() as connection:
                return bool(connection.execute(text(heartbeats)).scalar())

        await until(has_worked_for_a_second, description="some heartbeats")
        # Not every four milliseconds, as while a fairness key may have a job for a free slot.
        assert polls < 20
        release.set()
        await until(lambda: done(engine) == 40, description="all of them")


async def test_jobs_inserted_through_the_view_with_a_fairness_key_run(engine: Engine, start: Start) -> None:
    queue, runs = recorder()
    async with start(queue, queues=["mail"], poll_interval=timedelta(seconds=60)):
        with engine.begin() as connection:
            values = "('mail', '42', 'test', '\"a\"'), ('mail', NULL, 'test', '\"b\"')"
            connection.exec_driver_sql(f"INSERT INTO job_queue (queue, fairness_key, type_name, input) VALUES {values}")
        await until(lambda: done(engine) == 2, description="both of them")
    assert set(runs) == {"a", "b"}
    with engine.connect() as connection:
        for relation in ("job", "job_queue", "job_chain"):
            rows = connection.exec_driver_sql(f"SELECT fairness_key FROM {relation} WHERE queue = 'mail' ORDER BY 1")
            assert rows.scalars().all() == ["", "42"]
        values = f"('{'k' * 101}', 'test')"
        with pytest.raises(DBAPIError, match="fairness_key: must be at most 100 characters"):
            connection.exec_driver_sql(f"INSERT INTO job_queue (fairness_key, type_name) VALUES {values}")


@pytest.mark.parametrize("way", ["continuation", "redrive", "schedule"])
def test_continuations_redrives_and_schedules_keep_the_fairness_key(engine: Engine, jobs: Jobs, way: str) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("second", queue="mail", fairness_by="customer")
    async def second(payload: dict[str, str]) -> None: ...

    @queue.handler("first", queue="mail", fairness_by="customer")
    async def first(payload: dict[str, str]) -> Continuation[None]:
        return second.continuation(payload)

    with Session(engine) as session, session.begin():
        if way == "continuation":
            session.add(first.job({"customer": "42"}))
        elif way == "schedule":
            declared = queue.schedule("often", cron="* * * * *", handler=second, payload={"customer": "42"})
            assert declared.fairness_key == "42"
            operations.upsert_schedule(session, declared)
            operations.run_schedule(session, "often")
        else:
            dead = jobs.add(JobStatus.DEAD, type_name="second", queue="mail", fairness_key="42", input={"customer": "42"})
            operations.redrive_dead_letters(session, where=operations.DeadLetterFilter(fairness_keys=["42"], job_ids=[dead]))
    asyncio.run(asyncio.wait_for(Worker(queue, engine, options=quick(queues=["mail"])).run_until_idle(), PATIENCE))
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT queue, fairness_key, status::text FROM job")).all()
    assert set(rows) == {("mail", "42", "completed")}
    assert len(rows) == (2 if way == "continuation" else 1)


def done(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM job WHERE status = 'completed'")).scalar_one())


@pytest.mark.slow
@pytest.mark.parametrize("limited", ["for every key", "for some keys"])
async def test_fairness_key_limits_apply_across_workers_without_blocking_other_keys(engine: Engine, limited: str) -> None:
    queue = JobQueue()
    together = asyncio.Event()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @queue.handler("test")
    async def work(payload: str) -> None:
        running[payload] += 1
        most[payload] = max(most[payload], running[payload])
        if len([name for name in running if running[name]]) >= 5:
            together.set()
        await together.wait()
        await asyncio.sleep(0)
        running[payload] -= 1

    with engine.begin() as connection:
        if limited == "for every key":
            connection.execute(text("INSERT INTO queue (name, concurrency_per_key) VALUES ('default', 2)"))
            # A fairness key with settings of its own is not limited by `concurrency_per_key`.
            insert_of_key = "INSERT INTO queue (name, fairness_key, global_concurrency) VALUES ('default', '4', 3)"
            connection.execute(text(insert_of_key))
        else:
            limits = "SELECT 'default', n, 2 + n / 4 FROM generate_series(0, 4) AS n"
            insert_of_keys = f"INSERT INTO queue (name, fairness_key, global_concurrency) {limits}"
            connection.execute(text(insert_of_keys))
    fill(engine, "default", count=100, keys=5)
    tasks = [asyncio.create_task(Worker(queue, engine, options=quick(concurrency=8)).run_until_idle()) for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    # Without the lock of the row that limits them, two claims count the same room.
    assert {name: count for name, count in most.items() if name != "default/4"} == dict.fromkeys(
        [f"default/{key}" for key in range(4)], 2
    )
    assert 2 <= most["default/4"] <= 3
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM job WHERE status <> 'completed'")).scalar() == 0


@pytest.mark.long
async def test_fairness_key_limits_apply_with_more_keys_than_one_claim_names(engine: Engine, start: Start) -> None:
    queue, release, running, most = JobQueue(), asyncio.Event(), Counter[str](), Counter[str]()

    @queue.handler("test")
    async def work(payload: str) -> None:
        running[payload] += 1
        most[payload] = max(most[payload], running[payload])
        await release.wait()
        running[payload] -= 1

    write(engine, "INSERT INTO queue (name, concurrency_per_key) VALUES ('default', 1)")
    fill(engine, "default", count=600, keys=150)  # more than one claim names
    async with start(queue, concurrency=400):
        await until(lambda: len(running) == 150, description="each of them")
        release.set()
        await until(lambda: done(engine) == 600, description="all of them")
    # A claim must not put those in the place of keys without room whose room it has not asked for.
    assert set(most.values()) == {1}


async def test_a_fairness_keys_rate_limit_does_not_slow_other_keys(engine: Engine, start: Start) -> None:
    queue, runs = recorder()
    with engine.begin() as connection:
        columns = "name, fairness_key, rate_limit, rate_period"
        connection.execute(text(f"INSERT INTO queue ({columns}) VALUES ('default', 'slow0', 3, interval '1 hour')"))
    fill(engine, "default", "slow", count=30)
    fill(engine, "default", count=60, keys=3)
    async with start(queue), start(queue):
        await until(lambda: len(runs) >= 63, description="the others, and what the rate lets through")
    assert Counter(runs) == {"default/0": 20, "default/1": 20, "default/2": 20, "default/slow0": 3}
