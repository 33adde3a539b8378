"""Enqueueing by COPY: the same rows as one by one, in the caller's transaction, or an error that names the payload."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import psycopg
import pytest
from sqlalchemy import ARRAY, Engine, Numeric, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Job, JobMixin, JobQueue
from sa_jobqueue.errors import InvalidJobError, InvalidPayloadError, JobQueueError
from sa_jobqueue.operations import bulk
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications

pytestmark = both_servers

numbers = itertools.count(1)
NASTY: list[Any] = [
    {"text": "tab\t, line\n, return\r, \\N, \\., back\\slash, \"quoted\", 'quoted', ä, \U0001f600, \x7f, \u2028", "n": 1},
    {"text": "", "n": -(2**63)},
    {"text": "\\", "n": 1.5, "of": [None, True, {"\\t\t": []}]},
]

queue = JobQueue()


@dataclass
class Order:
    number: int
    name: str = "\\N"


@queue.handler("send", queue="mail", priority=4, max_attempts=3, timeout=timedelta(seconds=90), version=2)
def send(order: Order) -> None: ...


@queue.handler("any")
def take(document: Any) -> None: ...


class Base(DeclarativeBase):
    pass


class CopiedJob(JobMixin[str], Base, queue_prefix="c_", queue_id_factory=lambda: f"a\tb\\{next(numbers)}"):
    """Text ids that need escaping, and columns of its own."""

    amount: Mapped[Decimal | None] = mapped_column("Amount of it", Numeric(10, 2))
    kind: Mapped[str] = mapped_column(default="plain\ttext")
    tags: Mapped[list[str] | None] = mapped_column(ARRAY(Text))


copied_queue = JobQueue(CopiedJob)


@copied_queue.handler("own")
def keep(document: Any) -> None: ...


def rows(session: Session, model: type[JobMixin[Any]]) -> list[dict[str, Any]]:
    """Return the stored rows, without columns that differ by row or time."""
    left_out = {"id", "chain_id", "created_at", "scheduled_at", "changed_xid"}
    mappings = session.execute(select(model.__table__).order_by(func.length(cast(model.id, Text)), "id")).mappings()
    return [{name: value for name, value in row.items() if name not in left_out} for row in mappings]


@pytest.mark.parametrize("options", [{}, {"priority": -3, "queue": "other", "timeout": timedelta(days=40, microseconds=7)}])
def test_handler_enqueue_many_writes_the_same_rows_as_add(session: Session, options: dict[str, Any]) -> None:
    cases: list[tuple[Any, list[Any]]] = [(take, NASTY), (send, [Order(1), Order(2, "ä\t\\")])]
    for handler, payloads in cases:
        session.add_all(handler.job(payload, **options) for payload in payloads)
        session.flush()
        added = rows(session, Job)
        session.rollback()
        assert handler.enqueue_many(session, iter(payloads), **options) == len(payloads)
        assert rows(session, Job) == added
        assert all(job.id == job.chain_id for job in session.scalars(select(Job)))
        session.rollback()


def test_handler_enqueue_many_supports_text_ids_and_application_columns(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    values: dict[str, Any] = {"amount": Decimal("3.50"), "tags": ["a", 'b"\\', "c,d"]}
    with Session(engine) as session:
        session.add_all(keep.job(payload, **values) for payload in NASTY)
        session.flush()
        added = rows(session, CopiedJob)
        session.rollback()
        keep.enqueue_many(session, NASTY, **values)
        assert rows(session, CopiedJob) == added
        assert all("\t" in job_id and "\\" in job_id for job_id in session.scalars(select(CopiedJob.id)))


def test_handler_enqueue_many_computes_due_times_in_the_database(session: Session) -> None:
    future = datetime(2099, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    for options, expected in (
        ({"delay": timedelta(hours=1)}, timedelta(hours=1)),
        ({"at": past}, timedelta(0)),
        ({"at": future}, None),
    ):
        take.enqueue_many(session, [1, 2], **options)
        for job in session.scalars(select(Job)):
            assert job.scheduled_at == (future if expected is None else job.created_at + expected)
        session.rollback()


def test_handler_enqueue_many_is_part_of_the_transaction_and_notifies_at_its_commit(
    session: Session, jobs: Jobs, notifications: Notifications
) -> None:
    send.enqueue_many(session, [Order(1)])
    session.rollback()
    with session.begin_nested() as savepoint:
        send.enqueue_many(session, [Order(1)])
        savepoint.rollback()
    assert take.enqueue_many(session, []) == 0
    session.commit()
    assert (jobs.count(), notifications.seen()) == (0, [])
    send.enqueue_many(session, [Order(1)])
    send.enqueue_many(session, [Order(2)])
    assert (jobs.count(), notifications.seen()) == (0, [])
    session.commit()
    assert (jobs.count(), notifications.seen()) == (2, [("due", "mail")])


@pytest.mark.slow
async def test_handler_enqueue_many_works_on_an_async_session(
    async_sessions: async_sessionmaker[AsyncSession], jobs: Jobs
) -> None:
    async with async_sessions() as session:
        assert await take.enqueue_many(session, ({"n": n} for n in range(20_000))) == 20_000
        assert jobs.count() == 0
        await session.commit()
    assert jobs.count() == 20_000
    async with async_sessions() as session:
        with pytest.raises(InvalidPayloadError):
            await take.enqueue_many(session, [1, object()])
        await session.rollback()
        await take.enqueue_many(session, [1])
        await session.commit()
    assert jobs.count() == 20_001


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"id": uuid4()}, "id"),
        ({"deduplication_key": "k"}, "deduplication_key"),
        ({"blockers": []}, "blockers"),
        ({"queue": "no spaces"}, "queue"),
        ({"delay": timedelta(-1)}, "delay"),
    ],
)
def test_handler_enqueue_many_refuses_invalid_options_before_writing(session: Session, options: Any, field: str) -> None:
    with pytest.raises(InvalidJobError) as caught:
        take.enqueue_many(session, [1], **options)
    assert caught.value.field == field
    assert not session.in_transaction()


def test_an_invalid_payload_is_named_by_its_index_and_nothing_is_written(session: Session, jobs: Jobs) -> None:
    bad: Any = {"number": "one"}
    many = [*(Order(n) for n in range(5000)), bad]
    with pytest.raises(InvalidPayloadError, match=r"payloads\[5000\]\.number"):
        send.enqueue_many(session, many)
    session.rollback()
    with pytest.raises(InvalidPayloadError, match=r"payloads\[1\]\.of\[0\]"):
        take.enqueue_many(session, [{}, {"of": [object()]}])
    session.rollback()
    with pytest.raises(ZeroDivisionError):
        take.enqueue_many(session, (1 // n for n in (1, 0)))
    session.rollback()
    send.enqueue_many(session, [Order(1)])
    session.commit()
    assert jobs.count() == 1


def test_payloads_are_streamed_without_being_kept_in_memory(session: Session) -> None:
    alive: WeakSet[Payload] = WeakSet()
    most = 0

    class Payload(dict[str, Any]):
        __hash__ = object.__hash__  # type: ignore[assignment]  # dicts have none

    def made() -> Iterator[Payload]:
        nonlocal most
        for _ in range(2_000):
            payload = Payload(text="x" * 1000)
            alive.add(payload)
            most = max(most, len(alive))
            yield payload

    assert take.enqueue_many(session, made()) == 2_000
    assert most * 1000 < 2 * bulk.CHUNK


def test_payloads_generated_through_the_same_session_raise_an_error(session: Session, jobs: Jobs) -> None:
    jobs.add()
    uses: list[Callable[[], object]] = [lambda: session.scalar(select(Job.id)), session.commit]
    for use in uses:
        with pytest.raises(JobQueueError, match="busy sending rows"):
            take.enqueue_many(session, (str(use()) for _ in range(2)))
        session.rollback()
    take.enqueue_many(session, [str(session.scalar(select(Job.id)))])
    session.commit()
    assert jobs.count() == 2


def failing(error: BaseException) -> Iterator[str]:
    yield "first"
    raise error


# PostgreSQL closes the connection if the client's reason for giving up a COPY is longer than 10,000 bytes.
@pytest.mark.parametrize("error", [LookupError("x" * 20_000), KeyboardInterrupt("ä" * 9_000), LookupError("\udce9")])
def test_an_error_of_the_iterator_is_raised_and_leaves_the_connection_usable(
    session: Session, jobs: Jobs, error: BaseException
) -> None:
    pid = session.scalar(select(func.pg_backend_pid()))
    session.rollback()
    with pytest.raises(type(error)) as caught:
        take.enqueue_many(session, failing(error))
    assert caught.value is error
    session.rollback()
    with pytest.raises(InvalidJobError, match=r"payloads\[0\].deduplication_key"):
        take.enqueue_many(session, ["first"], deduplicate_by=lambda _: "x" * 100_000)
    session.rollback()
    assert session.scalar(select(func.pg_backend_pid())) == pid
    assert jobs.count() == 0


async def test_an_error_of_the_iterator_leaves_an_async_connection_usable(async_engine: AsyncEngine) -> None:
    error = LookupError("x" * 20_000)
    async with async_engine.connect() as connection:
        pid = await connection.scalar(select(func.pg_backend_pid()))
        with pytest.raises(LookupError) as caught:
            await take.enqueue_many(connection, failing(error))
        await connection.rollback()
        assert caught.value is error
        assert await connection.scalar(select(func.pg_backend_pid())) == pid


def test_a_connection_lost_during_copy_leaves_no_rows_and_a_usable_session(
    session: Session, jobs: Jobs, database_url: str
) -> None:
    def cut() -> Iterator[str]:
        pid = session.connection().connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        yield "x" * 100_000
        with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as other_connection:
            other_connection.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        for _ in range(100):
            yield "x" * 100_000

    with pytest.raises(Exception, match=r"connection|terminating"):
        take.enqueue_many(session, cut())
    session.rollback()
    assert take.enqueue_many(session, ["again"]) == 1
    session.commit()
    assert jobs.count() == 1


async def test_handler_enqueue_many_takes_connections(engine: Engine, async_engine: AsyncEngine) -> None:
    """The jobs are part of the connection's transaction."""
    with engine.connect() as connection:
        assert take.enqueue_many(connection, [1, 2]) == 2
        connection.rollback()
        assert take.enqueue_many(connection, [3], priority=2) == 1
        connection.commit()
    async with async_engine.begin() as awaited:
        assert await take.enqueue_many(awaited, [4]) == 1
    with Session(engine) as session:
        assert sorted(session.scalars(select(Job.input))) == [3, 4]
