"""A worker that becomes idle while a transaction is open is notified of every job that the transaction makes due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import Deduplicate, Job, JobQueue, JobStatus, Schedule, cancel_jobs, enqueue_many, operations
from sa_jobqueue import enqueue as enqueue_once
from sa_jobqueue.layout import Layout
from sa_jobqueue.models import WaitFor
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import call, write

pytestmark = both_servers

HOUR = timedelta(hours=1)
DUE: Final = [("due", "mail")]
queue = JobQueue()


@queue.handler("send", queue="mail")
def send(order: int) -> None: ...


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every commit count as late."""
    monkeypatch.setattr(operations.wakeups, "LOOK_AGAIN_AFTER", timedelta(0))


@pytest.fixture
def become_idle(database_url: str) -> Iterator[Callable[[], Notifications]]:
    """Give a function that lets a worker become idle."""
    workers: list[Notifications] = []

    def become() -> Notifications:
        workers.append(Notifications(database_url, Layout()))
        return workers[-1]

    yield become
    for worker in workers:
        worker.close()


# Operations. Each gets the jobs before the transaction, and returns what happens within it.


Write = Callable[[Session], object]


def wait(jobs: Jobs, engine: Engine, name: str) -> None:
    job_id = jobs.add(JobStatus.PENDING, queue="mail", due_in=3600, attempt=1)
    step = {"job_id": job_id, "name": "answer", "kind": "wait", "event": name, "attempt": 1, "started_at": func.now()}
    write(engine, insert(Job.Step).values(step))


def sending(jobs: Jobs, engine: Engine) -> Write:
    wait(jobs, engine, "approved")
    return lambda session: operations.send_event(session, "approved")


def sending_by_sql(jobs: Jobs, engine: Engine) -> Write:
    wait(jobs, engine, "approved")
    return lambda session: session.execute(text("SELECT job_send_event('approved')"))


def triggering(jobs: Jobs, engine: Engine) -> Write:
    job_id = jobs.add(queue="mail", due_in=3600)
    return lambda session: operations.trigger_jobs(session, [job_id])


def triggering_what_is_due(jobs: Jobs, engine: Engine) -> Write:
    """A worker that looked meanwhile has skipped the locked row."""
    job_id = jobs.add(queue="mail")
    return lambda session: operations.trigger_jobs(session, [job_id])


def rescheduling(jobs: Jobs, engine: Engine) -> Write:
    job_id = jobs.add(queue="mail", due_in=7200)
    return lambda session: operations.reschedule_jobs(session, [job_id], delay=HOUR)


def redriving(jobs: Jobs, engine: Engine) -> Write:
    jobs.add(JobStatus.DEAD, queue="mail")
    return operations.redrive_dead_letters


def raising_a_priority(jobs: Jobs, engine: Engine) -> Write:
    jobs.add(queue="mail")
    return lambda session: operations.set_priority(session, 3)


def completing(jobs: Jobs, engine: Engine) -> Write:
    blocker = Job("first", queue="other", delay=HOUR)
    job_id, _ = enqueue(engine, blocker, Job("send", 1, queue="mail", blockers=[blocker]))
    return lambda session: operations.complete_job(session, job_id)


def cancelling_a_blocker(jobs: Jobs, engine: Engine) -> Write:
    blocker = Job("first", queue="other", delay=HOUR)
    job_id, _ = enqueue(engine, blocker, Job("send", 1, queue="mail", blockers=[WaitFor(blocker, on_failure="continue")]))
    return lambda session: cancel_jobs(session, [job_id])


def updating_by_sql(jobs: Jobs, engine: Engine) -> Write:
    jobs.add(queue="mail", due_in=3600)
    return lambda session: session.execute(text("UPDATE job SET scheduled_at = now()"))


def moving_by_sql(jobs: Jobs, engine: Engine) -> Write:
    jobs.add(queue="other")
    return lambda session: session.execute(text("UPDATE job SET queue = 'mail'"))


def enqueueing_through_the_view(jobs: Jobs, engine: Engine) -> Write:
    return lambda session: session.execute(text("INSERT INTO job_queue (type_name, queue) VALUES ('send', 'mail')"))


def rescheduling_through_the_view(jobs: Jobs, engine: Engine) -> Write:
    jobs.add(queue="mail", due_in=3600)
    return lambda session: session.execute(text("UPDATE job_queue SET scheduled_at = now()"))


def redriving_through_the_view(jobs: Jobs, engine: Engine) -> Write:
    jobs.add(JobStatus.DEAD, queue="mail")
    return lambda session: session.execute(text("UPDATE job_queue SET status = 'pending'"))


def replacing(jobs: Jobs, engine: Engine) -> Write:
    call(engine, enqueue_once, send.job(1), deduplicate="key")
    return lambda session: enqueue_once(session, send.job(2), deduplicate=Deduplicate("key", replace={"input"}))


def adding(jobs: Jobs, engine: Engine) -> Write:
    def write(session: Session) -> None:
        session.add(send.job(1))
        session.flush()

    return write


def adding_many(jobs: Jobs, engine: Engine) -> Write:
    return lambda session: enqueue_many(session, [send.job(1), send.job(2)])


def adding_one(jobs: Jobs, engine: Engine) -> Write:
    return lambda session: send.enqueue(session, 1)


def copying(jobs: Jobs, engine: Engine) -> Write:
    return lambda session: send.enqueue_many(session, [1, 2, 3])


def running_a_schedule(jobs: Jobs, engine: Engine) -> Write:
    call(engine, operations.upsert_schedule, Schedule(name="nightly", cron="@daily", type_name="send", queue="mail"))
    return lambda session: operations.run_schedule(session, "nightly")


PRODUCERS: Final = [
    *(sending, sending_by_sql, triggering, triggering_what_is_due, rescheduling, redriving, raising_a_priority),
    *(completing, cancelling_a_blocker, updating_by_sql, moving_by_sql, enqueueing_through_the_view),
    *(rescheduling_through_the_view, redriving_through_the_view, replacing, adding, adding_many, adding_one, copying),
    running_a_schedule,
]


@pytest.mark.slow
@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_worker_that_became_idle_before_a_late_commit_is_notified(
    engine: Engine, jobs: Jobs, become_idle: Callable[[], Notifications], producer: Callable[[Jobs, Engine], Write]
) -> None:
    write = producer(jobs, engine)
    with Session(engine) as session:
        write(session)
        worker = become_idle()
        session.commit()
    assert DUE[0] in worker.seen()


@pytest.mark.slow
@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_is_rolled_back_to_a_savepoint_is_not_notified(
    engine: Engine,
    jobs: Jobs,
    become_idle: Callable[[], Notifications],
    producer: Callable[[Jobs, Engine], Write],
) -> None:
    write = producer(jobs, engine)
    worker = become_idle()
    with Session(engine) as session:
        with session.begin_nested() as savepoint:
            write(session)
            savepoint.rollback()
        session.commit()
    assert DUE[0] not in worker.seen()


def cancelling_a_predecessor(jobs: Jobs, engine: Engine) -> Write:
    first, _ = enqueue(engine, *(Job("send", 1, queue="mail", ordering_key="order 7") for _ in range(2)))
    return lambda session: cancel_jobs(session, [first])


def deleting_a_predecessor(jobs: Jobs, engine: Engine) -> Write:
    first, _ = enqueue(engine, *(Job("send", 1, queue="mail", ordering_key="order 7") for _ in range(2)))
    return lambda session: operations.delete_chains(session, [first])


@pytest.mark.parametrize("producer", [cancelling_a_predecessor, deleting_a_predecessor])
def test_the_end_of_a_predecessor_notifies_a_worker_that_became_idle_before_a_late_commit(
    engine: Engine, jobs: Jobs, become_idle: Callable[[], Notifications], producer: Callable[[Jobs, Engine], Write]
) -> None:
    write = producer(jobs, engine)
    with Session(engine) as session:
        write(session)
        worker = become_idle()
        session.commit()
    assert ("unblock", "") in worker.seen()


# Savepoints, and sessions that do not commit.


@pytest.mark.parametrize("has_jobs", [False, True])
def test_a_rollback_to_a_savepoint_leaves_the_look_before_it(
    engine: Engine, become_idle: Callable[[], Notifications], has_jobs: bool
) -> None:
    with Session(engine) as session:
        session.add(send.job(1))
        session.flush()
        worker = become_idle()
        with session.begin_nested() as savepoint:
            session.execute(text("SELECT 1"))
            if has_jobs:  # notifies, and the rollback discards that
                session.add(send.job(2))
                session.flush()
            savepoint.rollback()
        session.commit()
    assert worker.seen() == DUE


def test_a_flush_that_takes_long_looks_again_after_its_jobs(
    engine: Engine, become_idle: Callable[[], Notifications]
) -> None:
    workers: list[Notifications] = []

    @event.listens_for(engine, "after_cursor_execute")
    def after(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO job ("):
            workers.append(become_idle())

    with Session(engine) as session:
        session.add(send.job(1))
        session.commit()
    (worker,) = workers
    assert worker.seen() == DUE


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint"])
@pytest.mark.parametrize("savepoint", [False, True])
def test_a_session_that_joined_the_transaction_of_a_connection_looks_again_when_that_commits(
    engine: Engine, become_idle: Callable[[], Notifications], mode: Any, savepoint: bool
) -> None:
    with engine.begin() as connection:
        with Session(connection, join_transaction_mode=mode) as session:
            session.add(send.job(1))
            session.commit()
        worker = become_idle()
        if savepoint:
            connection.begin_nested().rollback()
    assert worker.seen() == DUE


def test_a_session_that_joined_a_transaction_which_is_prepared_does_not_notify(
    engine: Engine, become_idle: Callable[[], Notifications]
) -> None:
    """PostgreSQL refuses to prepare a transaction that has notified."""
    worker = become_idle()
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            session.add(send.job(1))
            session.commit()
        transaction.prepare()
        transaction.rollback()
    assert worker.seen() == []


async def test_an_async_session_that_joined_a_connection_looks_again_when_that_commits(
    async_engine: AsyncEngine, become_idle: Callable[[], Notifications]
) -> None:
    async with async_engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
        async with AsyncSession(connection) as session:
            session.add(send.job(1))
            await session.commit()
        worker = become_idle()
        await connection.commit()
    assert worker.seen() == DUE
