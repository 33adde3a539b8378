"""Settings that code declares for queues apply from a worker's first claim; existing rows stay as they are."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.events import ComponentFailed, SettingsChanged, SettingsDiffer, WorkerStarted
from sa_jobqueue.operations import get_queue, list_queues, pause_queues, upsert_queue
from sa_jobqueue.operations.queues import add_declared_queues
from sa_jobqueue.policies.retention import Retention
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.worker.background import controls
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, EventLog, Start, quick, until

MINUTE = timedelta(minutes=1)


def declaring(*names: str, **declared: Any) -> JobQueue[Any]:
    """Return a registry that declares queues, with a handler that does nothing."""
    jobs = JobQueue()
    for name in names:
        jobs.queue(name, **declared)

    @jobs.handler("test", queue=names[0])
    async def nothing() -> None: ...

    return jobs


async def test_a_limit_declared_in_code_applies_from_the_first_claim(engine: Engine) -> None:
    jobs = JobQueue()
    jobs.queue("texts", global_concurrency=1)
    running, peak = 0, 0

    @jobs.handler("text", queue="texts")
    async def send() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1

    enqueue(engine, *[send.job() for _ in range(10)])
    await Worker(jobs, engine, options=quick()).run_until_idle()
    assert peak == 1


async def test_a_differing_queue_row_is_kept_and_one_warning_lists_the_differences(
    engine: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = declaring("mail", "same", "new", rate_limit=5, rate_period=MINUTE)
    jobs.queue("mail", fairness_key="42", weight=3)
    with Session(engine) as session, session.begin():
        upsert_queue(session, QueueSettings(name="mail", weight=2, rate_limit=7, rate_period=MINUTE))
        upsert_queue(session, QueueSettings(name="same", rate_limit=5, rate_period=MINUTE))
        pause_queues(session, ["same"])
    with caplog.at_level(logging.WARNING, "sa_jobqueue.worker"):
        async with start(jobs) as log:
            await log.until(WorkerStarted)
            (event,) = log.of(SettingsDiffer)
    assert event.differences == {"mail": {"weight": (2, 1), "rate_limit": (7, 5)}}
    (line,) = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "SettingsDiffer"]
    assert "mail weight=2 (declared: 1); mail rate_limit=7 (declared: 5)" in line
    assert "sa-jobqueue queues sync" in line
    rows = {(queue.name, queue.fairness_key): (queue.weight, queue.rate_limit) for queue in call(engine, list_queues)}
    assert rows == {("mail", ""): (2, 7), ("mail", "42"): (3, None), ("new", ""): (1, 5), ("same", ""): (1, 5)}


async def test_concurrently_starting_workers_write_each_queue_once_and_notify_running_ones(
    engine: Engine, start: Start
) -> None:
    of_all = QueueSettings(
        name="mail",
        weight=9,
        concurrency_per_key=4,
        global_concurrency=3,
        rate_limit=2,
        rate_period=MINUTE,
        retry=Backoff(base=timedelta(seconds=1.5), factor=1.5),
        retention=Retention(completed=MINUTE, dead=timedelta(days=7)),
    )
    new = [of_all, QueueSettings(name="mail", fairness_key='"quoted", \\', rate_limit=2, rate_period=MINUTE, rate_burst=3)]
    at_once = threading.Barrier(4)
    errors_found: list[Any] = []

    def declare(settings: list[QueueSettings]) -> None:
        with Session(engine) as session, session.begin():
            session.connection()
            at_once.wait(PATIENCE)
            errors_found.append(add_declared_queues(session, settings))

    async with start(declaring("other"), queues=["mail"]) as log:
        await log.until(WorkerStarted)
        await asyncio.gather(*(asyncio.to_thread(declare, new[::step]) for step in (1, -1, 1, -1)))
        (event,) = await log.until(SettingsChanged)
        assert event.paused_queues == ()
    assert errors_found == [{}] * 4
    with Session(engine) as session:
        assert add_declared_queues(session, new) == {}
        stored = get_queue(session, "mail")
    assert {name: getattr(stored, name) for name in of_all.row} == of_all.row


async def test_an_uncommitted_queue_row_does_not_keep_a_worker_from_starting(
    engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "_LOCK_TIMEOUT", text("SET LOCAL lock_timeout = '50ms'"))
    monkeypatch.setattr(controls, "WRITE_AGAIN", 0.1)
    waiting = jobs.add(queue="mail")
    with Session(engine) as session:
        get_queue(session, "mail", for_update=True)
        worker = Worker(declaring("mail", "texts", weight=2), engine, options=quick())
        log = EventLog(worker)
        running = asyncio.create_task(worker.run())
        await log.until(ComponentFailed)
        await until(lambda: jobs.status(waiting).value == "completed")
        session.commit()
    (event,) = await log.until(SettingsDiffer)
    assert event.differences == {"mail": {"weight": (1, 2)}}
    assert call(engine, get_queue, "texts").weight == 2
    worker.stop()
    await asyncio.wait_for(running, PATIENCE)
