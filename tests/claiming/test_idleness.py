"""Producers notify only while a worker is announced as idle; a worker looks once more after it has announced itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.events import ComponentFailed, JobCompleted
from sa_jobqueue.operations.wakeups import LOOK_AGAIN_AFTER
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.claim import idleness
from sa_jobqueue.worker.claim.claimer import Claimer
from sa_jobqueue.worker.claim.idleness import Idleness
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import enqueue
from tests.fixtures.transactions import scalar, write
from tests.fixtures.workers import PATIENCE, Start, until

NEVER = timedelta(minutes=10)
"""Between two polls."""


class Heard:
    """A session that LISTENs for due jobs without being announced as idle."""

    def __init__(self, url: str) -> None:
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(plain, autocommit=True)
        self._connection.execute('LISTEN ".job:due"')
        self._connection.execute("LISTEN mark")

    def seen(self) -> list[str]:
        """Return the payloads of all commits before this call."""
        self._connection.execute("NOTIFY mark")
        payloads: list[str] = []
        for note in self._connection.notifies(timeout=30):
            if note.channel == "mark":
                return payloads
            payloads.append(note.payload)
        raise AssertionError("the mark did not come back")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def heard(database_url: str) -> Iterator[Heard]:
    heard_queue = Heard(database_url)
    yield heard_queue
    heard_queue.close()


@pytest.fixture
def queue() -> JobQueue[Any]:
    queue_object = JobQueue()

    @queue_object.handler("nothing", queue="mail")
    async def nothing() -> None: ...

    return queue_object


def is_idle(engine: Engine) -> bool:
    """Return whether a worker is announced for the queue "mail"."""
    statement = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted)"
    return bool(scalar(engine, statement))


@both_servers
def test_without_an_idle_worker_nothing_is_notified(engine: Engine, heard: Heard, queue: JobQueue[Any]) -> None:
    enqueue(engine, queue.job("nothing"))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job_queue (type_name, queue) VALUES ('nothing', 'mail')"))
        connection.execute(text("UPDATE job_queue SET scheduled_at = now() + interval '1 h'"))
    assert heard.seen() == []
    assert scalar(engine, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


async def test_an_idle_worker_is_notified_by_whoever_makes_a_job_due(
    engine: Engine, heard: Heard, queue: JobQueue[Any], start: Start
) -> None:
    async with start(queue, poll_interval=NEVER) as log:
        await until(lambda: is_idle(engine), description="it is announced")
        heard.seen()
        enqueue(engine, queue.job("nothing"))
        await log.until(JobCompleted)
        write(engine, "INSERT INTO job_queue (type_name, queue) VALUES ('nothing', 'mail')")
        await log.until(JobCompleted, 2)
        assert heard.seen() == ["mail"] * 2
    await until(lambda: not is_idle(engine), description="the announcement ends with the worker's session")


async def test_the_jobs_that_a_worker_starts_count_as_arrivals(
    engine: Engine, queue: JobQueue[Any], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load few notifications arrive: a channel passes them on together, and many jobs come with one."""
    withdrawn = asyncio.Event()
    withdraw = Listener.withdraw

    def noted(self: Listener) -> None:
        withdrawn.set()
        withdraw(self)

    async with start(queue, poll_interval=NEVER, concurrency=40):
        await until(lambda: is_idle(engine), description="the announcement")
        monkeypatch.setattr(Listener, "withdraw", noted)
        enqueue(engine, *(queue.job("nothing") for _ in range(30)))  # one notification
        await asyncio.wait_for(withdrawn.wait(), PATIENCE)


@pytest.mark.parametrize("moment", ["before it announces itself", "after it"])
async def test_a_job_committed_while_a_worker_announces_itself_is_found(
    engine: Engine, queue: JobQueue[Any], start: Start, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whether the producer looked before the announcement, and notified no one, or after it."""
    monkeypatch.setattr(idleness, "_POLLS", 0.0)
    announce = Listener.announce
    late = iter([True])

    async def meanwhile(self: Listener) -> bool:
        if self.is_announced or not self.listening.is_set() or not next(late, False):
            return await announce(self)
        if moment == "before it announces itself":
            await asyncio.to_thread(enqueue, engine, queue.job("nothing"))
        is_announced = await announce(self)
        if moment == "after it":
            await asyncio.to_thread(enqueue, engine, queue.job("nothing"))
        return is_announced

    monkeypatch.setattr(Listener, "announce", meanwhile)
    async with start(queue, poll_interval=NEVER) as log:
        await log.until(JobCompleted)


async def test_a_transaction_that_looked_before_the_announcement_and_committed_after_the_look_is_found(
    engine: Engine, queue: JobQueue[Any], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker polls a few times after it has announced itself."""
    claim, announce = Claimer.claim, Listener.announce
    looked, announced = asyncio.Event(), False

    async def announcing(self: Listener) -> bool:
        nonlocal announced
        if not (self.is_announced or announced) and self.listening.is_set():
            session.add(queue.job("nothing"))
            await asyncio.to_thread(session.flush)
            announced = await announce(self)
            return announced
        return await announce(self)

    async def claiming(self: Claimer, connection: AsyncConnection) -> int:
        started = await claim(self, connection)
        if announced and not looked.is_set():
            await asyncio.to_thread(session.commit)
            looked.set()
        return started

    monkeypatch.setattr(Listener, "announce", announcing)
    monkeypatch.setattr(Claimer, "claim", claiming)
    monkeypatch.setattr("sa_jobqueue.operations.wakeups.LOOK_AGAIN_AFTER", NEVER)
    with Session(engine) as session:
        async with start(queue, poll_interval=NEVER) as log:
            await asyncio.wait_for(looked.wait(), 30)
            await log.until(JobCompleted)


async def test_a_worker_that_lost_its_listener_announces_itself_again(
    engine: Engine, queue: JobQueue[Any], start: Start
) -> None:
    async with start(queue, poll_interval=NEVER) as log:
        await until(lambda: is_idle(engine), description="it is announced")
        with engine.connect() as connection:
            ended = text("SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' LIMIT 1")
            assert connection.scalar(ended)
        await log.until(ComponentFailed)
        await until(lambda: is_idle(engine), description="it is announced again")
        enqueue(engine, queue.job("nothing"))
        await log.until(JobCompleted)


async def test_a_session_that_holds_the_lock_costs_notifications_only(
    engine: Engine, heard: Heard, queue: JobQueue[Any], start: Start
) -> None:
    """Any role may take it. Producers notify meanwhile; the worker tries again at each poll."""
    with engine.connect() as stranger:
        stranger.execute(text("SELECT pg_advisory_lock(job_idle_lock('mail'))"))
        async with start(queue, poll_interval=timedelta(milliseconds=50)) as log:
            enqueue(engine, queue.job("nothing"))
            await log.until(JobCompleted)
            assert heard.seen() == ["mail"]
            stranger.invalidate()
            await until(lambda: is_idle(engine), description="it is announced")


class Announced:
    """A listener that only notes its calls."""

    def __init__(self) -> None:
        self.is_announced = False
        self.listening = asyncio.Event()
        self.listening.set()

    async def announce(self) -> bool:
        was, self.is_announced = self.is_announced, True
        return not was

    def withdraw(self) -> None:
        self.is_announced = False


@pytest.mark.parametrize(("every", "stays"), [(0.01, True), (0.005, False)])
async def test_a_worker_withdraws_while_more_than_a_hundred_jobs_a_second_arrive(every: float, stays: bool) -> None:
    now, listener = 0.0, Announced()
    listener_methods: Any = listener
    idle = Idleness(listener_methods, lambda: now)
    assert await idle.announce()
    assert not await idle.announce()
    always = True
    for _ in range(200):
        now += every
        idle.arrived()  # its notification
        idle.arrived()  # the job
        always = always and listener.is_announced
    assert always is stays
    if not stays:
        assert idle.is_busy
        assert not await idle.announce()
        now += 0.1
        assert await idle.announce(), "nothing arrives any more"


async def test_the_polls_after_an_announcement_outlast_a_transaction_that_looks_only_once() -> None:
    now, announced = 0.0, Announced()
    listener: Any = announced
    idle = Idleness(listener, lambda: now)
    delays = []
    for _ in range(3):  # no producer notifies it yet
        delays.append(idle.poll_in())
        now += delays[-1] or 0.0
    assert delays == pytest.approx([0.005, 0.01, 0.02])
    await idle.announce()
    announced_at, polls = now, []
    while (delay := idle.poll_in()) is not None:
        now += delay
        polls.append(now - announced_at)
    assert polls[0] == pytest.approx(0.005)
    assert len(polls) <= 6
    assert polls[-1] >= 3 * LOOK_AGAIN_AFTER.total_seconds()


def test_sleeps_that_end_early_do_not_put_off_the_next_poll() -> None:
    """A job that this worker reschedules ends its sleep: after ten of them it would not have polled for five seconds."""
    now = 0.0
    listener: Any = Announced()
    idle = Idleness(listener, lambda: now)
    planned = 0.0
    for _ in range(10):
        delay = idle.poll_in()
        assert delay is not None
        planned = now + delay
        now += 0.0001
    assert planned == pytest.approx(0.005)


def test_at_most_seventeen_locks_announce_a_worker_of_any_number_of_queues(engine: Engine) -> None:
    with engine.connect() as connection:
        names = "SELECT '' UNION ALL SELECT 'queue-' || n || chr(31) || 'tenant' FROM generate_series(1, 10000) AS n"
        locks = f"SELECT count(DISTINCT job_idle_lock(name)) FROM ({names}) AS queue (name)"
        assert connection.scalar(text(locks)) == 17
        same = text("SELECT job_idle_lock('mail') = job_idle_lock('mail' || chr(31) || 'tenant')")
        assert connection.scalar(same) is True
