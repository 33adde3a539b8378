"""`handler.enqueue`: one job by one statement in the caller's transaction, without an ORM object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.errors import ConflictError, InvalidJobError, InvalidOptionError, InvalidPayloadError
from sa_jobqueue.operations import wakeups
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import scalars, write

pytestmark = both_servers

queue = JobQueue()


class Order(BaseModel):
    id: int


@queue.handler("send", queue="mail", priority=2, timeout=timedelta(minutes=1), max_attempts=3)
def send(order: Order) -> None: ...


@queue.handler("tidy")
def tidy() -> None: ...


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_arguments: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"fairness_key": "customer 7", "deduplication_key": "k", "ordering_key": "o", "rate_cost": 5, "queue": "other"},
    {"delay": timedelta(hours=1), "expires_at": func.now() + timedelta(days=1), "trace_context": "00-1-2-01"},
    {"at": datetime(2030, 1, 1, tzinfo=UTC), "priority": -9},
    {"at": datetime(2000, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "keys", "delay", "at", "past"])
def test_handler_enqueue_writes_the_same_row_as_add(
    sessions: sessionmaker[Session], jobs: Jobs, options: dict[str, Any]
) -> None:
    generated = {"id", "chain_id", "changed_xid", "deduplication_key", "ordering_key"}
    with sessions.begin() as session:
        job_id = send.enqueue(session, Order(id=7), **options)
        added = send.job(Order(id=7), **options | ({"deduplication_key": "l"} if "deduplication_key" in options else {}))
        added_id = added.id
        session.add(added)
    enqueued, expected = jobs.get(job_id), jobs.get(added_id)
    assert {name: enqueued[name] for name in enqueued if name not in generated} == {
        name: expected[name] for name in expected if name not in generated
    }
    assert (enqueued["changed_xid"], enqueued["chain_id"]) == (expected["changed_xid"], job_id)
    assert enqueued["ordering_key"] == options.get("ordering_key")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no transaction take so long that it looks for idle workers again, however busy the machine is."""
    monkeypatch.setattr(wakeups, "LOOK_AGAIN_AFTER", timedelta(hours=1))


@pytest.mark.usefixtures("quick")
def test_handler_enqueue_is_one_statement_including_its_notification(
    engine: Engine, jobs: Jobs, notifications: Notifications
) -> None:
    with Session(engine) as session, counted(engine) as statements:
        send.enqueue(session, Order(id=1), fairness_key="a")
        send.enqueue(session, Order(id=2))
        tidy.enqueue(session)
        session.commit()
    assert ["job_notify_due(" in statement for statement in statements] == [True, False, True]  # one a queue and transaction
    assert notifications.seen() == [("due", "mail\x1fa"), ("due", "default")]
    assert jobs.count() == 3


@pytest.mark.usefixtures("quick")
def test_add_is_one_statement_including_its_notification(engine: Engine, jobs: Jobs, notifications: Notifications) -> None:
    with Session(engine, expire_on_commit=False) as session, counted(engine) as statements:
        first, second = send.job(Order(id=1), fairness_key="a"), send.job(Order(id=2))
        for job in (first, second):
            session.add(job)
            session.commit()
        statements_of_add = [*statements]
        assert [(job.changed_xid, job.created_at) for job in (first, second)] == [
            (row["changed_xid"], row["created_at"]) for row in (jobs.get(first.id), jobs.get(second.id))
        ]
    assert ["job_notify_due(" in statement for statement in statements_of_add] == [True, True]
    assert all(statement.startswith("INSERT") for statement in statements_of_add)
    assert notifications.seen() == [("due", "mail\x1fa"), ("due", "mail")]


def test_values_that_the_database_filled_in_are_there_after_the_flush(engine: Engine) -> None:
    with Session(engine, expire_on_commit=False) as session:
        session.add(job := tidy.job(delay=timedelta(hours=1)))
        session.commit()
    assert job.scheduled_at - job.created_at == timedelta(hours=1)
    assert (job.queue, job.timeout, job.rate_cost) == ("default", None, None)


def test_a_job_added_again_after_a_rollback_notifies_again(engine: Engine, jobs: Jobs, notifications: Notifications) -> None:
    job = send.job(Order(id=1))
    with Session(engine) as session:
        session.add(job)
        session.flush()
        session.rollback()
        assert notifications.seen() == []
        session.add(job)
        session.commit()
        assert jobs.get(job.id)["changed_xid"] == job.changed_xid
    assert notifications.seen() == [("due", "mail")]


def test_a_rolled_back_handler_enqueue_leaves_no_row_and_no_notification(
    sessions: sessionmaker[Session], jobs: Jobs, notifications: Notifications
) -> None:
    with sessions() as session:
        with session.begin_nested() as savepoint:
            send.enqueue(session, Order(id=1))
            savepoint.rollback()
        job_id = send.enqueue(session, Order(id=2))  # within the savepoint its notification was lost too
        session.commit()
        assert notifications.seen() == [("due", "mail")]
        send.enqueue(session, Order(id=3))
        session.rollback()
    assert list(jobs.statuses()) == [job_id]
    assert notifications.seen() == []


def test_handler_enqueue_refuses_invalid_arguments_before_writing(sessions: sessionmaker[Session], jobs: Jobs) -> None:
    anything: Any = send
    with sessions() as session:
        with pytest.raises(InvalidPayloadError, match="id"):
            anything.enqueue(session, {"id": "x"})
        with pytest.raises(InvalidJobError, match="priority"):
            anything.enqueue(session, Order(id=1), priority=10)
        with pytest.raises(InvalidJobError, match="wait: is neither an option nor a column"):
            anything.enqueue(session, Order(id=1), wait=1)
        with pytest.raises(InvalidOptionError, match="session"):
            anything.enqueue("session", Order(id=1))
        assert not session.in_transaction()
        existing_id = send.enqueue(session, Order(id=1))
        with pytest.raises(ConflictError):
            send.enqueue(session, Order(id=1), id=existing_id)
        session.rollback()
    assert jobs.count() == 0


def test_handler_enqueue_also_enqueues_pending_blockers(sessions: sessionmaker[Session], jobs: Jobs) -> None:
    with sessions.begin() as session:
        before = send.job(Order(id=1))
        job_id, before_id = tidy.enqueue(session, blockers=[before]), before.id
    assert (jobs.status(job_id), jobs.status(before_id)) == (JobStatus.BLOCKED, JobStatus.PENDING)


def test_handler_enqueue_flushes_pending_objects_first(sessions: sessionmaker[Session], jobs: Jobs) -> None:
    with sessions.begin() as session:
        first = Job("test")
        session.add(first)
        send.enqueue(session, Order(id=1))
        assert first not in session.new
        session.autoflush = False
        second = Job("test")
        session.add(second)
        send.enqueue(session, Order(id=2))
        assert second in session.new
        assert session.scalars(select(Job).where(Job.queue == "mail")).first() is not None
    assert jobs.count() == 4


async def test_handler_enqueue_accepts_every_kind_of_session(
    sessions: sessionmaker[Session], async_sessions: async_sessionmaker[AsyncSession], jobs: Jobs
) -> None:
    async with async_sessions.begin() as session:
        first = await send.enqueue(session, Order(id=1))
        await tidy.enqueue(session)
    scoped: Any = scoped_session(sessions)
    second = send.enqueue(scoped, Order(id=2))
    scoped.commit()
    scoped.remove()
    scoped_async: Any = async_scoped_session(async_sessions, scopefunc=lambda: 1)
    third = await send.enqueue(scoped_async, Order(id=3))
    await scoped_async.commit()
    await scoped_async.remove()
    assert {first, second, third} < set(jobs.statuses())
    assert jobs.count() == 4


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "keys", "delay", "at", "past"])
def test_a_connection_writes_the_same_row_as_a_session(engine: Engine, jobs: Jobs, options: dict[str, Any]) -> None:
    with engine.begin() as connection:
        by_connection = send.enqueue(connection, Order(id=7), **options)
    with Session(engine) as session:
        keys = {"deduplication_key": "l"} if "deduplication_key" in options else {}
        by_session = send.enqueue(session, Order(id=7), **options | keys)
        session.commit()
    generated = {"id", "chain_id", "changed_xid", "deduplication_key", "created_at", "scheduled_at", "expires_at"}
    row_by_connection, row_by_session = jobs.get(by_connection), jobs.get(by_session)
    assert {name: row_by_connection[name] for name in row_by_connection if name not in generated} == {
        name: row_by_session[name] for name in row_by_session if name not in generated
    }


def test_a_connection_commits_and_rolls_the_job_back(engine: Engine) -> None:
    with engine.connect() as connection:
        committed_id = tidy.enqueue(connection)
        connection.commit()
        tidy.enqueue(connection)
        connection.rollback()
    assert scalars(engine, select(Job.__table__.c.id)) == [committed_id]


async def test_an_async_connection_is_awaited(database_url: str, jobs: Jobs) -> None:
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        job_id = await send.enqueue(connection, Order(id=7))
    await engine.dispose()
    assert jobs.get(job_id)["type_name"] == "send"


def test_a_connection_notifies_workers_once_as_a_session_does(engine: Engine, notifications: Notifications) -> None:
    with Session(engine) as session:
        send.enqueue(session, Order(id=7))
        session.commit()
    expected = notifications.seen()
    with engine.begin() as connection:
        send.enqueue(connection, Order(id=7))
        send.enqueue(connection, Order(id=8))
    assert notifications.seen() == expected


def test_a_connection_in_autocommit_enqueues_and_notifies_without_a_commit(
    engine: Engine, notifications: Notifications, jobs: Jobs
) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for number in (7, 8):
            job_id = send.enqueue(connection, Order(id=number))
            assert jobs.status(job_id) is JobStatus.PENDING  # another session reads it
            assert notifications.seen() == [("due", "mail")]


def test_a_long_transaction_of_a_connection_looks_for_idle_workers_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "LOOK_AGAIN_AFTER", timedelta(0))
    with counted(engine) as statements:
        with engine.begin() as connection:
            send.enqueue(connection, Order(id=7))
        write(engine, select(func.now()))
    assert ["job_notify_due(" in statement for statement in statements] == [True, True, False]
