"""Dependencies are opened for the handlers that declare them, for as long as they run, and closed at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker
from sa_jobqueue.errors import InvalidHandlerError
from sa_jobqueue.events import JobStarted, ProviderFailed
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.workers import PATIENCE, EventLog, quick, until

pytestmark = [both_servers, pytest.mark.every_python]


class Client:
    """Something of the process's that handlers ask for."""

    def __init__(self, number: int) -> None:
        self.number = number


class Clients:
    """Provides clients and notes what becomes of them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.may_open = threading.Event()
        self.may_open.set()
        self.returned = threading.Event()
        self.closed = 0

    @contextmanager
    def open(self, attempt: AttemptContext) -> Iterator[Client]:
        self.may_open.wait(PATIENCE)
        self.threads.add(threading.current_thread())
        self.notes.append("opened")
        forget = attempt.on_stop(lambda: self.notes.append("stopping"))
        try:
            yield Client(attempt.attempt)
        finally:
            forget()
            self.notes.append("closed")
            self.returned.set()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clients() -> Clients:
    """Give a provider."""
    return Clients()


@pytest.fixture
def queue(clients: Clients) -> JobQueue[Job]:
    """Give a registry that provides clients."""
    queue_object = JobQueue()
    queue_object.dependency(Client, clients)
    return queue_object


async def run_all(queue: JobQueue[Job], engine: Engine) -> EventLog:
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    return log


async def test_sync_and_async_handlers_receive_a_dependency_with_other_arguments(
    queue: JobQueue[Job], clients: Clients, engine: Engine, jobs: Jobs
) -> None:
    @queue.handler("sync")
    def sync(payload: int, session: Session, client: Client, ctx: AttemptContext) -> int:
        clients.notes.append("run")
        assert threading.current_thread() in clients.threads  # opened in the handler's own thread
        session.connection()
        return payload + client.number

    @queue.handler("asynchronous")
    async def asynchronous(payload: int, client: Client, session: AsyncSession) -> int:
        clients.notes.append("run")
        assert threading.current_thread() not in clients.threads - {threading.main_thread()}
        return payload + client.number

    for handler in (sync, asynchronous):
        (job_id,) = enqueue(engine, handler.job(41))
        clients.threads.clear()
        await run_all(queue, engine)
        assert jobs.get(job_id)["output"] == 42
        assert threading.main_thread() not in clients.threads
    assert clients.notes == ["opened", "run", "closed"] * 2
    assert clients.closed == 2  # with each worker that stopped


async def test_a_dependency_cannot_suppress_the_handlers_error(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @contextmanager
    def swallowing(attempt: AttemptContext) -> Iterator[Client]:
        with suppress(ValueError):
            yield Client(1)

    queue.dependency(Client, swallowing)

    @queue.handler("sync", max_attempts=1)
    def sync(payload: None, client: Client) -> None:
        raise ValueError("sync")

    @queue.handler("asynchronous", max_attempts=1)
    async def asynchronous(payload: None, client: Client) -> None:
        raise ValueError("asynchronous")

    ids = enqueue(engine, sync.job(None), asynchronous.job(None))
    await run_all(queue, engine)
    assert [jobs.get(job_id)["last_error"]["message"] for job_id in ids] == ["sync", "asynchronous"]


async def test_a_dependency_that_fails_to_open_or_close_fails_and_rolls_back_the_attempt(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @contextmanager
    def broken(attempt: AttemptContext) -> Iterator[Client]:
        if attempt.attempt == 1:
            raise OSError("none left")
        yield Client(1)
        raise OSError("cannot be closed")  # after the handler, before the commit

    queue.dependency(Client, broken)

    @queue.handler("enqueues", max_attempts=2, retry=lambda attempt, error: timedelta(0))
    def enqueues(payload: None, session: Session, client: Client) -> None:
        session.add(Job("other"))

    (job_id,) = enqueue(engine, enqueues.job(None))
    await run_all(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    messages = [attempt["error"]["message"] for attempt in jobs.attempts(job_id)]
    assert messages == ["none left", "cannot be closed"]
    assert jobs.count() == 1


@pytest.mark.parametrize("mode", ["sync", "asynchronous"])
async def test_a_dependency_is_notified_when_its_attempt_stops(
    queue: JobQueue[Job], clients: Clients, engine: Engine, jobs: Jobs, mode: str
) -> None:
    if mode == "sync":

        @queue.handler("waits", timeout=timedelta(milliseconds=100), max_attempts=1)
        def waits(payload: None, client: Client, ctx: AttemptContext) -> None:
            ctx.wait_cancelled(timedelta(seconds=PATIENCE))
    else:

        @queue.handler("waits", timeout=timedelta(milliseconds=100), max_attempts=1)
        async def waits_too(payload: None, client: Client) -> None:
            await asyncio.Event().wait()

    (job_id,) = enqueue(engine, queue.job("waits"))
    await run_all(queue, engine)
    assert clients.returned.wait(PATIENCE)
    assert clients.notes == ["opened", "stopping", "closed"]
    assert [attempt["outcome"] for attempt in jobs.attempts(job_id)] == ["timed_out"]


async def test_a_dependency_opened_for_a_stopped_handler_is_closed(
    queue: JobQueue[Job], clients: Clients, engine: Engine, jobs: Jobs
) -> None:
    @queue.handler("never_begins", timeout=timedelta(milliseconds=50), max_attempts=1)
    async def never_begins(payload: None, client: Client) -> None:
        clients.notes.append("run")

    clients.may_open.clear()
    (job_id,) = enqueue(engine, never_begins.job(None))
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted)
    await until(lambda: jobs.status(job_id) is JobStatus.DEAD, description="its time is up")
    clients.may_open.set()
    assert await asyncio.to_thread(clients.returned.wait, PATIENCE)
    worker.stop()
    await asyncio.wait_for(run, PATIENCE)
    assert clients.notes == ["opened", "stopping", "closed"]


async def test_a_dependency_that_fails_to_close_at_shutdown_is_reported(engine: Engine) -> None:
    class Stubborn(Clients):
        def close(self) -> None:
            raise OSError("stays")

    queue = JobQueue()
    queue.dependency(Client, Stubborn())

    @queue.handler("noop")
    def noop(payload: None, client: Client) -> None: ...

    log = await run_all(queue, engine)
    assert [str(event.error) for event in log.of(ProviderFailed)] == ["stays"]


async def test_included_handlers_keep_their_own_dependencies(
    queue: JobQueue[Job], clients: Clients, engine: Engine, jobs: Jobs
) -> None:
    @queue.handler("asks")
    def asks(payload: None, client: Client) -> int:
        return client.number

    whole = JobQueue()
    whole.include(queue)
    (job_id,) = enqueue(engine, asks.job(None))
    await run_all(whole, engine)
    assert jobs.get(job_id)["output"] == 1
    with pytest.raises(InvalidHandlerError, match="or the class of a dependency"):

        @whole.handler("asks_too")
        def asks_too(payload: None, client: Client) -> None: ...
