"""Enqueueing in the caller's transaction, and its notifications."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobQueue, JobStatus, aio, enqueue_many
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.layout import Layout
from sa_jobqueue.operations import wakeups
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications

pytestmark = [both_servers, pytest.mark.every_python]

queue = JobQueue()
DUE = [("due", "")]  # to all queues: the database decides in which one a job without a handler is


@queue.handler("send", queue="mail")
def send(order: dict[str, Any]) -> None: ...


# Within the caller's transaction.


def test_an_added_job_is_visible_once_its_transaction_commits(
    sessions: sessionmaker[Session], jobs: Jobs, notifications: Notifications
) -> None:
    with sessions() as session:
        job = Job("test", {"a": [1, None, "ä"]}, priority=3, timeout=timedelta(minutes=1), max_attempts=2)
        ids = (job.id, job.chain_id)
        session.add(job)
        session.flush()
        assert jobs.count() == 0
        assert notifications.seen() == []
        session.commit()
        assert notifications.seen() == DUE
        row = jobs.get(ids[0])
    assert (row["id"], row["chain_id"], row["root_id"]) == (*ids, None)
    assert (row["input"], row["priority"], row["timeout"], row["max_attempts"]) == (
        {"a": [1, None, "ä"]},
        3,
        timedelta(minutes=1),
        2,
    )
    assert (row["status"], row["attempt"], row["chain_completed_at"]) == (JobStatus.PENDING, 0, None)
    assert row["created_at"] == row["scheduled_at"]


def test_a_rolled_back_job_leaves_no_row_and_no_notification(
    sessions: sessionmaker[Session], jobs: Jobs, notifications: Notifications
) -> None:
    with sessions() as session:
        session.add(Job("test"))
        session.flush()
        session.rollback()
        session.commit()
    assert jobs.count() == 0
    assert notifications.seen() == []


def test_a_rolled_back_savepoint_leaves_no_row_and_no_notification(
    sessions: sessionmaker[Session], jobs: Jobs, notifications: Notifications
) -> None:
    with sessions.begin() as session:
        with session.begin_nested() as savepoint:
            session.add(Job("test", queue="lost"))
            session.flush()
            savepoint.rollback()
        second = Job("test")
        second_id = second.id
        session.add(second)
    assert list(jobs.statuses()) == [second_id]
    assert notifications.seen() == DUE


def test_a_notification_lost_with_a_savepoint_is_sent_again(
    sessions: sessionmaker[Session], jobs: Jobs, notifications: Notifications
) -> None:
    with sessions.begin() as session:
        with session.begin_nested() as savepoint:
            session.add(Job("test"))
            session.flush()
            savepoint.rollback()
        session.add(Job("test"))
    assert jobs.count() == 1
    assert notifications.seen() == DUE


def test_a_reused_session_notifies(sessions: sessionmaker[Session], notifications: Notifications) -> None:
    session = sessions()
    session.add(Job("test"))
    session.flush()
    session.close()
    session.add(Job("test"))
    session.commit()
    session.close()
    assert notifications.seen() == DUE


async def test_jobs_added_to_an_async_session_are_enqueued_and_notified(
    async_sessions: async_sessionmaker[AsyncSession], jobs: Jobs, notifications: Notifications
) -> None:
    async with async_sessions() as session:
        session.add_all([Job("test"), send.job({})])
        await session.flush()
        await session.rollback()
        session.add(Job("test"))
        await session.commit()
        await aio.enqueue_many(session, [send.job({}), send.job({})])
        assert notifications.seen() == DUE
        await session.commit()
    assert jobs.count() == 3
    assert notifications.seen() == [("due", "mail")]


def test_jobs_added_together_notify_once_per_queue(
    sessions: sessionmaker[Session], jobs: Jobs, notifications: Notifications
) -> None:
    with sessions.begin() as session:
        session.add_all([Job("test", queue=name) for name in ("a", "b", "a", "b")])
    assert jobs.count() == 4
    assert sorted(notifications.seen()) == [("due", "a"), ("due", "b")]


# Notifications.


@pytest.mark.parametrize(("seconds", "expected"), [(0.05, []), (0.15, DUE)])
def test_a_transaction_that_took_long_looks_again_for_idle_workers_before_it_commits(
    sessions: sessionmaker[Session],
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    expected: list[tuple[str, str]],
) -> None:
    """A worker that falls asleep while the transaction is open is notified, or still polls when it commits."""
    now = 1000.0
    monkeypatch.setattr(wakeups, "time", SimpleNamespace(monotonic=lambda: now))
    with sessions() as session:
        session.add(Job("test"))
        session.flush()
        with session.begin_nested():
            session.add(Job("test"))
        worker = Notifications(database_url, Layout())
        now += seconds
        session.commit()
        assert worker.seen() == expected
        worker.close()


@pytest.mark.long
def test_no_state_is_kept_for_collected_sessions(sessions: sessionmaker[Session]) -> None:
    for _ in range(3):
        session = sessions()
        session.add(Job("test"))
        session.flush()
        session.close()
    del session
    gc.collect()
    assert len(wakeups._looks) == 0


# When it is due.


def test_a_delay_counts_from_the_databases_clock(session: Session, jobs: Jobs) -> None:
    single, many = Job("test", delay=timedelta(hours=1)), Job("test", delay=timedelta(hours=1))
    session.add(single)
    session.flush()
    enqueue_many(session, [many])
    session.commit()
    for job in (single, many):
        row = jobs.get(job.id)
        assert row["scheduled_at"] == row["created_at"] + timedelta(hours=1)
    assert single.scheduled_at - single.created_at == timedelta(hours=1)


def test_a_scheduled_time_is_stored_exactly_and_a_past_one_means_now(session: Session, jobs: Jobs) -> None:
    future = datetime(2099, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    for add in (session.add_all, lambda new: enqueue_many(session, new)):
        new = [Job("test", at=future), Job("test", at=datetime(2020, 1, 1, tzinfo=UTC))]
        add(new)
        session.commit()
        assert jobs.get(new[0].id)["scheduled_at"] == future
        past = jobs.get(new[1].id)
        assert past["scheduled_at"] == past["created_at"]


# Many at once.


def test_enqueue_many_writes_one_statement_in_the_given_order(
    session: Session, jobs: Jobs, notifications: Notifications, engine: Engine
) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    new = [
        send.job({"n": 1}, priority=5, delay=timedelta(hours=1)),
        Job("test", None, timeout=timedelta(seconds=3), max_attempts=2),
        Job("test", [1], queue="other", deduplication_key="k", input_version=2),
    ]
    ids = enqueue_many(session, new)
    assert len([sql for sql in statements if sql.startswith("INSERT")]) == 1
    session.commit()
    assert ids == [job.id for job in new]
    for job in new:
        row = jobs.get(job.id)
        for name in ("queue", "type_name", "priority", "input", "input_version", "timeout", "max_attempts", "chain_id"):
            assert getattr(job, name) in {row[name], None} if name != "input" else row[name] == job.input, name
        assert (row["status"], row["deduplication_key"]) == (JobStatus.PENDING, job.deduplication_key)
        assert not session.identity_map.contains_state(job._sa_instance_state)  # type: ignore[attr-defined]
    assert sorted(notifications.seen()) == [("due", ""), ("due", "mail"), ("due", "other")]


def test_enqueue_many_leaves_defaults_to_the_database(session: Session, engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    enqueue_many(session, [Job("test"), Job("test")])
    assert "chain_id" in statements[0]
    assert not any(
        f"{name}," in statements[0] for name in ("queue", "priority", "status", "timeout", "attempt", "max_attempts")
    )
    session.add(Job("test"))  # writes each column
    session.commit()
    columns = [column for column in Job.__table__.c if column.name not in {"id", "chain_id", "changed_xid"}]
    rows = session.execute(select(*columns)).all()
    assert len(rows) == 3
    assert len({repr(row) for row in rows}) == 1


def test_enqueue_many_is_part_of_the_transaction(session: Session, jobs: Jobs, notifications: Notifications) -> None:
    enqueue_many(session, [Job("test")])
    session.rollback()
    with session.begin_nested() as savepoint:
        enqueue_many(session, [Job("test")])
        savepoint.rollback()
    session.commit()
    assert jobs.count() == 0
    assert notifications.seen() == []


def test_enqueue_many_refuses_jobs_it_cannot_write_together(session: Session, jobs: Jobs) -> None:
    added = Job("test")
    session.add(added)
    for new, place in (([Job("test"), added], "new[1]"), ([Job("test"), object()], "new[1]")):
        with pytest.raises(InvalidJobError) as caught:
            enqueue_many(session, new)  # type: ignore[arg-type]
        assert caught.value.field == place
    session.commit()
    with pytest.raises(InvalidJobError, match=r"new\[0\]: is or was in a session"):
        enqueue_many(session, [added])
    session.expunge_all()
    with pytest.raises(InvalidJobError, match="is or was in a session"):
        enqueue_many(session, [added])
    assert jobs.count() == 1


def test_an_id_that_is_taken_is_a_conflict(session: Session, jobs: Jobs) -> None:
    from sa_jobqueue.errors import ConflictError

    existing_id = jobs.add()
    with pytest.raises(ConflictError) as caught:
        enqueue_many(session, [Job("test", id=existing_id)])
    assert caught.value.constraint == "pk_job"
    assert isinstance(caught.value.__cause__, IntegrityError)
    session.rollback()
    session.add(Job("test", id=existing_id))
    with pytest.raises(IntegrityError, match="pk_job"):
        session.flush()


def test_an_added_job_sends_only_what_it_sets_and_the_rest_is_read_without_a_query(session: Session, engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    job = Job("test", {}, ordering_key="customer 7")
    session.add(job)
    session.flush()
    (insert,) = statements
    columns = insert.partition("(")[2].partition(")")[0].split(", ")
    unset = ("started_at", "completed_at", "leased_by", "deduplication_key", "expires_at", "last_error", "chain_status")
    assert "ordering_key" in columns
    assert set(columns).isdisjoint(unset)
    assert [getattr(job, name) for name in unset] == [None] * len(unset)
    assert statements == [insert]
    job.ordering_key = None
    session.flush()
    assert session.scalar(select(Job.ordering_key).where(Job.id == job.id)) is None


@pytest.mark.parametrize("expires", [True, False])
def test_only_the_flush_of_a_commit_that_expires_its_objects_returns_no_columns(engine: Engine, expires: bool) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with Session(engine, expire_on_commit=expires) as session:
        job = Job("test")
        session.add(job)
        session.flush()
        assert job.created_at == job.scheduled_at
        assert (job.root_id, job.has_waiters, job.timeout) == (None, False, None)
        with session.begin_nested():  # its end expires nothing
            session.add(job_of_savepoint := Job("test"))
        assert job_of_savepoint.created_at == job.created_at
        assert ["RETURNING" in statement for statement in statements if statement.startswith("INSERT")] == [True, True]
        session.add(last := Job("test"))
        session.commit()
        assert ("RETURNING" in statements[-1]) is not expires
        read = len(statements)
        assert last.created_at == last.scheduled_at
        assert len(statements) - read == (1 if expires else 0)
        session.add(after := Job("test"))  # a commit is forgotten when it ends
        session.flush()
        assert "RETURNING" in statements[-1]
        session.add_all([Job("test") for _ in range(4)])
        session.commit()  # in one statement, which SQLAlchemy writes for RETURNING alone
        assert statements[-1].count("VALUES") == 1
        assert "RETURNING" in statements[-1]
        assert after.root_id is None


@pytest.mark.parametrize("expires", [True, False])
async def test_the_commit_of_an_async_session_that_expires_its_objects_returns_no_columns(
    async_engine: AsyncEngine, expires: bool
) -> None:
    statements: list[str] = []
    event.listen(async_engine.sync_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    async with AsyncSession(async_engine, expire_on_commit=expires) as session:
        session.add(job := Job("test"))
        await session.commit()
        assert ("RETURNING" in statements[-1]) is not expires
        await session.refresh(job)
        assert job.created_at == job.scheduled_at


def test_many_added_jobs_send_no_default_and_have_it_without_a_query(engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with Session(engine, expire_on_commit=False) as session:
        new = [Job("test") for _ in range(4)]
        session.add_all(new)
        session.commit()
        sent = [set(statement.partition("(")[2].partition(")")[0].split(", ")) for statement in statements]
        assert all(columns.isdisjoint({"chain_index", "status", "open_blockers", "attempt"}) for columns in sent)
        values = {(job.status, job.chain_index, job.open_blockers, job.attempt) for job in new}
        assert values == {(JobStatus.PENDING, 0, 0, 0)}
        statements_of_insert = len(statements)
        # Those that wait have another status, and all of a flush share their columns.
        session.add_all([Job("test", blockers=new[:1]), *(Job("test") for _ in range(4))])
        session.flush()
    inserts = [statement for statement in statements[statements_of_insert:] if statement.startswith("INSERT INTO job (")]
    assert all("open_blockers" in statement.partition(")")[0] for statement in inserts)


def test_many_jobs_whose_flush_failed_read_as_before(session: Session, jobs: Jobs) -> None:
    (taken_id,) = enqueue_many(session, [Job("test")])
    session.commit()
    new = [Job("test") for _ in range(4)]
    session.add_all([*new, Job("test", id=taken_id)])
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()
    assert {(job.status, job.attempt) for job in new} == {(JobStatus.PENDING, 0)}
    session.add_all(new[:2])
    enqueue_many(session, new[2:])
    session.commit()
    assert {jobs.status(job.id) for job in new} == {JobStatus.PENDING}


def test_a_job_is_added_again_after_a_rollback(session: Session) -> None:
    job = Job("test")
    session.add(job)
    session.flush()
    session.rollback()
    session.add(job)
    session.commit()
    assert session.scalars(select(Job.id)).all() == [job.id]


def test_a_job_is_added_again_after_a_commit_that_failed(session: Session) -> None:
    def fail(session: Session, context: object) -> None:
        raise RuntimeError("after the INSERT")

    job = Job("test")
    session.add(job)
    event.listen(session, "after_flush_postexec", fail)
    with pytest.raises(RuntimeError, match="after the INSERT"):
        session.commit()
    session.rollback()
    event.remove(session, "after_flush_postexec", fail)
    before_commit = session.scalars(select(func.now())).one()
    session.rollback()
    names = ("queue", "created_at", "type_name")
    assert [getattr(job, name) for name in names] == [None, None, "test"]  # as before the flush
    session.add(job)
    assert [getattr(job, name) for name in names] == [None, None, "test"]
    session.commit()
    assert job.created_at > before_commit
    assert job.queue == "default"


async def test_an_async_session_reads_the_columns_of_an_added_job(async_sessions: async_sessionmaker[AsyncSession]) -> None:
    async with async_sessions() as session:
        job = Job("test")
        session.add(job)
        await session.flush()
        assert job.created_at == job.scheduled_at
        assert (job.root_id, job.has_waiters) == (None, False)


def test_a_missing_input_is_stored_as_json_null_and_a_missing_output_as_sql_null(session: Session) -> None:
    jobs_without_input = [Job("test"), Job("test")]
    session.add(jobs_without_input[0])
    session.flush()
    enqueue_many(session, [jobs_without_input[1]])
    session.commit()
    rows = session.execute(text("SELECT jsonb_typeof(input), output IS NULL, last_error IS NULL FROM job")).all()
    assert [tuple(row) for row in rows] == [("null", True, True)] * 2
    assert isinstance(jobs_without_input[0].id, UUID)
    assert jobs_without_input[0].input is jobs_without_input[0].output is jobs_without_input[0].last_error is None


def test_a_payload_is_written_as_it_was_when_the_job_was_created(session: Session) -> None:
    """The text that was checked goes to the INSERT; an attribute that is set replaces it."""
    payload: dict[str, Any] = {}
    jobs = []
    for number in range(3):
        payload["number"] = number
        jobs.append(Job("test", payload))
    jobs[2].input = {"number": "set"}
    enqueue_many(session, jobs)
    input_by_id = {job.id: job.input for job in session.scalars(select(Job))}
    assert [input_by_id[job.id]["number"] for job in jobs] == [0, 1, "set"]
