"""`drain`: by a worker and inside the caller's transaction, sync and async, failing where the handler failed."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, Blockers, Cancel, Discard, Job, JobQueue, JobStatus, Retry, Snooze, Worker
from sa_jobqueue.errors import HandlerCommitError, InvalidOptionError
from sa_jobqueue.registry import BatchItem
from sa_jobqueue.testing import Drained, EndlessDrainError, advance, assert_enqueued, clear, drain
from tests.fixtures.jobs import enqueue

LATER = Backoff(base=timedelta(minutes=1), jitter=False)
"""A retry that is not due in a test; by default one may be due at once."""

HOUR = timedelta(hours=1)


@dataclass
class Order:
    order_id: int


class Client:
    """A dependency of a handler."""


def shop(**options: Any) -> tuple[JobQueue[Job], Any, list[Any]]:
    """Return a registry, a handler that records its payloads and fails on 13, and the record."""
    queue = JobQueue()
    payloads: list[Any] = []

    @queue.handler("send", **options)
    def send(order: Order) -> int:
        payloads.append(order.order_id)
        if order.order_id == 13:
            raise ValueError("unlucky")
        return order.order_id * 2

    return queue, send, payloads


@pytest.fixture(params=["engine", "session"])
def on(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Engine | Session]:
    """Give the fixture of a suite: an engine, with jobs committed, or a session in a transaction that is rolled back."""
    if request.param == "engine":
        yield engine
        return
    with engine.connect() as connection, Session(connection, join_transaction_mode="create_savepoint") as session:
        yield session


def add(on: Engine | Session, *new: Job) -> list[Any]:
    """Enqueue jobs as the application does, which commits."""
    if isinstance(on, Session):
        on.add_all(new)
        on.commit()
        return [job.id for job in new]
    with Session(on) as session, session.begin():
        session.add_all(new)
        return [job.id for job in new]


def get(on: Engine | Session, job_id: Any) -> Job:
    """Return a job as it stands."""
    if isinstance(on, Session):
        return on.get_one(Job, job_id, populate_existing=True)
    with Session(on, expire_on_commit=False) as session:
        return session.get_one(Job, job_id)


def test_drain_runs_due_jobs_and_returns_counts_by_outcome(on: Engine | Session) -> None:
    queue, send, payloads = shop()
    first, later = add(on, send.job(Order(1)), send.job(Order(2), delay=HOUR))
    assert drain(queue, on) == Drained(completed=1)
    assert (payloads, get(on, first).output, get(on, later).status) == ([1], 2, JobStatus.PENDING)


def test_drain_raises_the_handlers_error_with_its_traceback(on: Engine | Session) -> None:
    queue, send, _ = shop()
    (job_id,) = add(on, send.job(Order(13)))
    with pytest.raises(ValueError, match="unlucky") as caught:
        drain(queue, on)
    assert "raise ValueError" in "".join(traceback.format_exception(caught.value))
    assert caught.value.__notes__ == [f"raised by attempt 1 of the job {job_id} of type 'send'"]
    job: Any = get(on, job_id)
    assert (job.status, job.last_error["message"]) == (JobStatus.PENDING, "unlucky")


def test_drain_returns_errors_on_request_but_not_signals(on: Engine | Session) -> None:
    queue, send, _ = shop(max_attempts=1)

    @queue.handler("signals")
    def signals(kind: str) -> None:
        raise {
            "snooze": Snooze(HOUR),
            "retry": Retry(HOUR),
            "discard": Discard("spam"),
            "cancel": Cancel("late"),
        }[kind]

    add(on, send.job(Order(13)), *(signals.job(kind) for kind in ("snooze", "retry", "discard", "cancel")))
    drained = drain(queue, on, raise_errors=False)
    (error,) = drained.errors
    assert isinstance(error, ValueError)
    assert (drained.retried, drained.snoozed, drained.died, drained.cancelled) == (1, 1, 2, 1)
    assert drain(queue, on) == Drained()  # nothing of it is due


@pytest.mark.slow
def test_drain_scheduled_runs_delayed_jobs_and_retries_in_time_order(on: Engine | Session) -> None:
    queue = JobQueue()
    runs: list[tuple[str, int]] = []

    @queue.handler("flaky", max_attempts=3, retry=Backoff(base=HOUR, cap=HOUR, jitter=False))
    def flaky(name: str, ctx: AttemptContext) -> None:
        runs.append((name, ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError(name)

    add(on, flaky.job("b", delay=timedelta(minutes=30)), flaky.job("a"))
    drained = drain(queue, on, raise_errors=False, scheduled=True)
    assert (drained.completed, drained.retried) == (2, 4)
    assert runs == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("as_time", [False, True])
def test_drain_until_stops_at_a_time(on: Engine | Session, as_time: bool) -> None:
    queue, send, payloads = shop()
    add(on, send.job(Order(1), delay=HOUR), send.job(Order(2), delay=3 * HOUR))
    assert drain(queue, on, until=datetime.now(UTC) + 2 * HOUR if as_time else 2 * HOUR).completed == 1
    assert payloads == [1]
    assert drain(queue, on, until=HOUR).completed == 0
    assert drain(queue, on, scheduled=True).completed == 1


@pytest.mark.slow
def test_drain_fails_on_endless_snoozes(on: Engine | Session) -> None:
    queue = JobQueue()

    @queue.handler("poll")
    def poll() -> None:
        raise Snooze(timedelta(0))

    add(on, poll.job())
    with pytest.raises(EndlessDrainError, match="20 attempts have run and more are due"):
        drain(queue, on, limit=20)


def test_drain_runs_continuations_and_blocked_jobs(on: Engine | Session) -> None:
    queue = JobQueue()

    @queue.handler("last")
    def last(n: int) -> int:
        return n + 1

    @queue.handler("first")
    def first(n: int, ctx: AttemptContext) -> Any:
        return ctx.continue_with(last, n * 10)

    @queue.handler("total")
    def total(blockers: Blockers[list[int]]) -> int:
        return sum(blockers.outputs)

    waiting = total.job(blockers=[first.job(1), first.job(2)])
    (job_id,) = add(on, waiting)
    assert drain(queue, on).completed == 5
    assert get(on, job_id).output == 32


def test_drain_applies_middleware_dependencies_and_batches(on: Engine | Session) -> None:
    queue = JobQueue()
    payloads: list[Any] = []

    @contextmanager
    def client(attempt: AttemptContext) -> Iterator[Client]:
        payloads.append("opened")
        yield Client()

    queue.dependency(Client, client)

    @queue.middleware
    async def around(attempt: AttemptContext, proceed: Any) -> None:
        payloads.append(f"before {attempt.job.type_name}")
        await proceed()
        payloads.append("after")

    @queue.handler("one")
    def one(client: Client) -> str:
        return type(client).__name__

    @queue.batch_handler("many", max_size=2, max_wait=timedelta(0), retry=LATER)
    async def many(items: list[BatchItem[int]]) -> list[Any]:
        return [ValueError("odd") if item.payload % 2 else item.payload for item in items]

    (job_id,) = add(on, queue.job("one"))
    drain(queue, on)
    assert (payloads, get(on, job_id).output) == (["before one", "opened", "after"], "Client")
    add(on, many.job(2), many.job(3))
    drained = drain(queue, on, raise_errors=False)
    assert (drained.completed, drained.retried, str(drained.errors)) == (1, 1, "[ValueError('odd')]")


# In the caller's transaction.


def test_a_drained_handler_uses_the_tests_session_and_only_its_failure_rolls_back(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("write", retry=LATER)
    def write(fails: bool, session: Session) -> None:
        session.add(Job("written", {"fails": fails}))
        session.flush()
        if fails:
            raise ValueError

    with Session(engine) as session:
        session.add_all([write.job(True), write.job(False), Job("of_the_test")])
        drained = drain(queue, session, raise_errors=False)
        assert (drained.completed, drained.retried) == (1, 1)
        assert assert_enqueued(session, Job, type_name="written", count=1).input == {"fails": False}
        assert session.scalars(select(func.count()).select_from(Job)).one() == 4
        session.rollback()
        assert session.scalars(select(func.count()).select_from(Job)).one() == 0


def test_a_drained_handlers_rollback_and_commit_behave_as_under_a_worker(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("ends")
    def ends(how: str, session: Session) -> None:
        session.add(Job("dropped"))
        session.flush()
        getattr(session, how)()
        session.add(Job("kept"))

    with Session(engine) as session:
        session.add_all([ends.job("rollback"), Job("of_the_test")])
        drain(queue, session)
        assert_enqueued(session, Job, type_name="of_the_test")
        assert_enqueued(session, Job, type_name="kept", count=1)
        assert session.scalars(select(func.count()).where(Job.type_name == "dropped")).one() == 0
        session.add(ends.job("commit"))
        with pytest.raises(HandlerCommitError):
            drain(queue, session)
        assert session.scalars(select(func.count()).where(Job.type_name == "dropped")).one() == 0


def test_drain_refuses_a_session_of_the_wrong_kind_for_the_handler(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("write")
    async def write(n: int, session: AsyncSession) -> None: ...

    with Session(engine) as session:
        session.add(write.job(1))
        with pytest.raises(InvalidOptionError, match="takes a AsyncSession: pass one of that class"):
            drain(queue, session)
        with pytest.raises(InvalidOptionError, match="must be a Session or an AsyncSession"):
            drain(queue, "session")  # type: ignore[call-overload]


@pytest.fixture(params=["engine", "session"])
async def aon(request: pytest.FixtureRequest, async_engine: AsyncEngine) -> AsyncIterator[AsyncEngine | AsyncSession]:
    """Give the same for asynchronous tests."""
    if request.param == "engine":
        yield async_engine
        return
    async with AsyncSession(async_engine) as session:
        yield session


async def test_drain_runs_sync_and_async_handlers_with_either_session(aon: Any) -> None:
    queue = JobQueue()

    @queue.handler("async")
    async def is_async(n: int, session: AsyncSession) -> None:
        session.add(sync.job(n))

    @queue.handler("sync")
    def sync(n: int, session: Session) -> int:
        return n if session.scalars(select(Job.input).where(Job.type_name == "async")).one() == n else 0

    if isinstance(aon, AsyncSession):
        aon.add(is_async.job(7))
    else:
        async with AsyncSession(aon) as session, session.begin():
            session.add(is_async.job(7))
    assert (await drain(queue, aon)).completed == 2
    if isinstance(aon, AsyncSession):
        assert (await aon.scalars(select(Job.output).where(Job.type_name == "sync"))).one() == 7


async def test_a_synchronous_engine_works_in_an_asynchronous_test(engine: Engine) -> None:
    queue, send, payloads = shop()
    enqueue(engine, send.job(Order(1)))
    assert drain(queue, engine).completed == 1
    assert payloads == [1]


# Fixtures of applications, as they are.


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """Give a connection whose outer transaction is rolled back, as in SQLAlchemy's recipe for test suites."""
    with engine.connect() as connection:
        outer = connection.begin()
        yield connection
        outer.rollback()


def test_drain_works_in_an_outer_transaction_that_is_rolled_back(connection: Connection) -> None:
    queue, send, payloads = shop()
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        session.add(send.job(Order(1)))
        session.commit()
        session.add(send.job(Order(2)))
        drain(queue, session)
        session.commit()
        assert payloads == [1, 2]


def test_clear_deletes_all_jobs_in_a_teardown(engine: Engine) -> None:
    queue, send, _ = shop(max_attempts=1)

    @queue.handler("total")
    def total(blockers: Blockers[list[Any]]) -> None: ...

    add(engine, total.job(blockers=[send.job(Order(13)), send.job(Order(1))]))
    drain(queue, engine, raise_errors=False)
    with Session(engine) as session:
        with pytest.raises(IntegrityError):
            session.execute(delete(Job))
        session.rollback()
        clear(session)
        session.commit()
        kinds: list[Any] = [Job, Job.Blocker, Job.Attempt, Job.DeadLetter]
        assert [session.scalars(select(func.count()).select_from(kind)).one() for kind in kinds] == [0] * 4


def test_advance_shifts_every_stored_time(session: Session) -> None:
    queue, send, payloads = shop()
    job = send.job(Order(1), delay=HOUR)
    session.add(job)
    session.flush()
    before = job.scheduled_at
    frozen = session.scalars(select(func.now())).one()
    advance(session, timedelta(minutes=59))
    assert before - job.scheduled_at == timedelta(minutes=59)
    assert drain(queue, session).completed == 0
    advance(session, timedelta(minutes=1))
    assert session.scalars(select(func.now())).one() == frozen
    assert drain(queue, session).completed == 1
    with pytest.raises(InvalidOptionError, match="must be a timedelta above zero"):
        advance(session, timedelta(0))
    assert payloads == [1]


def test_the_error_of_an_attempt_is_in_its_context(engine: Engine) -> None:
    queue, send, _ = shop()
    add(engine, send.job(Order(13), max_attempts=1), send.job(Order(1)))
    worker = Worker(queue, engine)
    attempts: list[AttemptContext] = []
    worker.events.on_attempt_start(attempts.append)
    asyncio.run(worker.run_until_idle())
    assert sorted(type(attempt.error).__name__ for attempt in attempts) == ["NoneType", "ValueError"]
