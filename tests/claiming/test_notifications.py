"""A notification is a hint: any role that may connect can send one, so none decides anything, and a flood costs little."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, aio, cancel_jobs, wait_chain
from sa_jobqueue.db.compiled import Compiled, compiled
from sa_jobqueue.errors import ChainTimeoutError
from sa_jobqueue.events import AttemptLost, JobCompleted, JobStarted
from sa_jobqueue.layout import Layout
from sa_jobqueue.statements import controls
from sa_jobqueue.statements.jobs import named
from sa_jobqueue.worker.background.listener import BURST, MOST_PAYLOADS, Throttle
from sa_jobqueue.worker.ownership import COLUMNS
from sa_jobqueue.worker.signals import Hints
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import Start, until

Notify = Callable[..., None]
GARBAGE = ["", "x" * 7000, "mail/1/2\n;", "{}", "queue", "type ", "00000000-0000-0000-0000-000000000000", "\u202e", "-1"]


@pytest.fixture
def notify(engine: Engine, database_url: str) -> Iterator[Notify]:
    """Give a function that notifies a channel, as a role that has nothing but CONNECT."""
    name = f"stranger_{secrets.token_hex(4)}"
    with psycopg.connect(
        make_url(database_url).set(drivername="postgresql").render_as_string(False), autocommit=True
    ) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        url = make_url(database_url).set(drivername="postgresql", username=name).render_as_string(False)
        with psycopg.connect(url, autocommit=True) as stranger:

            def send(topic: Any, *payloads: Any, times: int = 1) -> None:
                for payload in payloads:  # each in a transaction of its own: the same twice in one is sent once
                    call_sql = sql.SQL("pg_notify({}, {})").format(Layout().channel(topic), str(payload))
                    loop = "DO $$ BEGIN FOR i IN 1..{} LOOP PERFORM {}; COMMIT; END LOOP; END $$"
                    stranger.execute(sql.SQL(loop).format(times, call_sql))

            yield send
        connection.execute(f"DROP ROLE {name}")


async def test_a_false_lost_notification_stops_no_attempt(start: Start, engine: Engine, notify: Notify) -> None:
    jobs = JobQueue()
    calls: Counter[str] = Counter()
    release = asyncio.Event()

    @jobs.handler("works")
    async def works(name: str) -> None:
        calls[name] += 1
        await release.wait()

    with Session(engine) as session, session.begin():
        kept_job, cancelled = works.job("kept"), works.job("cancelled")
        session.add_all([kept_job, cancelled])
        session.flush()
        kept_id, cancelled_id = kept_job.id, cancelled.id
    async with start(jobs) as log:
        await log.until(JobStarted, 2)
        for topic in ("lost", "due", "rules"):
            notify(topic, *GARBAGE)
        notify("lost", kept_id, cancelled_id, kept_id, times=20)
        call(engine, cancel_jobs, [cancelled_id])
        (lost,) = await log.until(AttemptLost)
        assert lost.job_id == cancelled_id
        notify("lost", kept_id)
        release.set()
        (completed,) = await log.until(JobCompleted)
        assert (completed.job_id, completed.attempt) == (kept_id, 1)
    assert calls == {"kept": 1, "cancelled": 1}
    assert len(log.of(AttemptLost)) == 1


async def test_a_missed_cancellation_is_found_when_the_worker_listens_again(start: Start, engine: Engine) -> None:
    jobs = JobQueue()

    @jobs.handler("works")
    async def works() -> None:
        await asyncio.Event().wait()

    with Session(engine) as session, session.begin():
        job = works.job()
        session.add(job)
        session.flush()
        job_id = job.id
    listening = "FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^LISTEN|^SELECT bool_and.pg_try'"
    async with start(jobs) as log:
        await log.until(JobStarted)
        with engine.connect() as connection:
            await until(lambda: bool(connection.exec_driver_sql(f"SELECT 1 {listening}").all()), description="it listens")
            connection.rollback()
            connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid, 10000) {listening}")
            cancelled = "UPDATE job SET status = 'cancelled', leased_by = NULL, leased_until = NULL, completed_at = now()"
            connection.exec_driver_sql(f"{cancelled}, chain_completed_at = now()")  # in SQL: it notifies no worker
            connection.commit()
        (lost,) = await log.until(AttemptLost)
        assert lost.job_id == job_id


@pytest.mark.slow
async def test_a_flood_of_notifications_costs_a_bounded_number_of_statements(
    start: Start, engine: Engine, notify: Notify, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = JobQueue()
    release = asyncio.Event()

    @jobs.handler("works")
    async def works() -> None:
        await release.wait()

    sent: Counter[Compiled] = Counter()
    execute = Compiled.execute

    async def counting(self: Compiled, *arguments: Any) -> Any:
        sent[self] += 1
        return await execute(self, *arguments)

    monkeypatch.setattr(Compiled, "execute", counting)
    with Session(engine) as session, session.begin():
        flooded, last = works.job(), works.job()
        session.add_all([flooded, last])
        session.flush()
        ids = flooded.id, last.id
    async with start(jobs, poll_interval=timedelta(seconds=60)) as log:
        await log.until(JobStarted, 2)
        loop = asyncio.get_running_loop()
        began, before = loop.time(), sent.copy()

        def flood() -> None:
            for _ in range(300):
                notify("due", "default")
                notify("lost", ids[0])
                notify("rules", "")
            with Session(engine) as session, session.begin():
                cancel_jobs(session, [ids[1]])  # whose notification comes after all of these

        await asyncio.to_thread(flood)
        await log.until(AttemptLost)
        count, seconds = sent - before, loop.time() - began
        release.set()
        await log.until(JobCompleted)
    for statement in (compiled(named, Job, columns=COLUMNS), compiled(controls.of_worker, Job)):
        assert 1 <= count[statement] <= (BURST + seconds) * 10 + 2
    # A claim is up to two statements: the claim, and a search for new partitions.
    assert count.total() <= 2 * (BURST + seconds) * 250


async def test_the_throttle_delivers_hints_at_once_after_a_pause_and_merges_a_flood() -> None:
    calls: list[Hints] = []
    called = asyncio.Event()

    def call(payloads: Hints) -> None:
        calls.append(payloads)
        called.set()

    throttle = Throttle(call, interval=BURST / 4)
    for number in range(5):
        throttle.add(str(number))
    assert calls == [[str(number)] for number in range(5)]
    for _ in range(1000):
        throttle.add("a")
        throttle.add("b")
    assert len(calls) == 5
    called.clear()
    await asyncio.wait_for(called.wait(), 10)
    assert calls[5:] == [["a", "b"]]
    for number in range(MOST_PAYLOADS + 100):
        throttle.add(str(number))
    called.clear()
    await asyncio.wait_for(called.wait(), 10)
    assert calls[6:] == [None]  # so many that anything may have changed
    throttle.add("late")
    throttle.close()
    assert len(calls) == 7


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_flood_of_false_ended_notifications_costs_wait_chain_few_queries(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, notify: Notify, is_async: bool
) -> None:
    job_id = jobs.add()
    queries: list[str] = []
    for sync_engine in (engine, async_engine.sync_engine):
        event.listen(sync_engine, "before_cursor_execute", lambda *arguments: queries.append(arguments[2]))
    ended = Event()

    def flood() -> None:
        while not ended.is_set():
            notify("ended", job_id, times=100)

    flooding = Thread(target=flood)
    flooding.start()
    patience = timedelta(seconds=1)
    waiting = (
        aio.wait_chain(async_engine, job_id, timeout=patience)
        if is_async
        else asyncio.to_thread(wait_chain, engine, job_id, timeout=patience)
    )
    try:
        with pytest.raises(ChainTimeoutError):
            await waiting
    finally:
        ended.set()
        flooding.join()
    assert len(queries) < 40
