"""`Job.changed_xid` is the database's: it is read like any column, and an application does not write it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, make_transient_to_detached

from sa_jobqueue import Job, JobQueue, JobStatus, aio, enqueue
from sa_jobqueue.testing import drain
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

queue = JobQueue()


@queue.handler("send", queue="mail")
def send(number: int) -> None: ...


def values(job: Job) -> dict[str, Any]:
    """Return all columns of a job, as a serializer reads them."""
    return {attribute.key: getattr(job, attribute.key) for attribute in inspect(Job).column_attrs}


def cached(engine: Engine) -> bytes:
    with Session(engine) as session, session.begin():
        session.add(job := send.job(7))
        session.flush()
        session.refresh(job)
        return pickle.dumps(job)


def test_merging_a_cached_job_writes_what_differs_but_not_the_transaction_id(engine: Engine, jobs: Jobs) -> None:
    job: Job = pickle.loads(cached(engine))
    write(engine, "UPDATE job SET changed_xid = pg_current_xact_id()")
    before = jobs.get(job.id)
    assert before["changed_xid"] != job.changed_xid
    with Session(engine) as session, session.begin():
        session.merge(job)
    assert jobs.get(job.id) == before
    job.priority = 3
    with Session(engine) as session, session.begin():
        session.merge(job)
    after = jobs.get(job.id)
    assert (after["priority"], after["changed_xid"] > before["changed_xid"]) == (3, True)


def test_merging_a_job_that_a_worker_completed_since_is_refused_by_the_fence(engine: Engine, jobs: Jobs) -> None:
    job: Job = pickle.loads(cached(engine))
    drain(queue, engine)
    with Session(engine) as session:
        session.merge(job)
        with pytest.raises(DBAPIError, match="attempt cannot be lowered from 1 to 0"):
            session.flush()
    assert jobs.get(job.id)["status"] == "completed"


def test_a_transaction_id_that_is_set_by_hand_is_not_written_by_the_unit_of_work(session: Session, jobs: Jobs) -> None:
    job = session.get_one(Job, jobs.add())
    loaded = job.changed_xid
    job.changed_xid = 5
    session.flush()
    assert job.changed_xid == loaded
    detached = Job("send", 7, id=jobs.add(), _handler=None)
    make_transient_to_detached(detached)
    detached.changed_xid = 5
    session.add(detached)
    session.flush()
    assert detached.changed_xid == jobs.get(detached.id)["changed_xid"]


WRITES: dict[str, Callable[[Session, Job], Any]] = {
    "update": lambda session, job: session.execute(update(Job).values(changed_xid=5)),
    "insert": lambda session, job: session.execute(insert(Job).values(id=job.id, type_name="send", changed_xid=5)),
    "bulk_update_mappings": lambda session, job: session.bulk_update_mappings(
        inspect(Job), [{"id": job.id, "changed_xid": 5}]
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_other_writes_of_a_transaction_id_are_refused_by_name(
    write: Callable[[Session, Job], Any], session: Session, jobs: Jobs
) -> None:
    job = session.get_one(Job, jobs.add())
    loaded = job.changed_xid
    with pytest.raises(StatementError, match="changed_xid: is written by the database, leave it out, got 5"):
        write(session, job)
    session.rollback()
    assert session.scalars(select(Job.changed_xid)).all() == [loaded]


CREATED: dict[str, Callable[[], list[Job]]] = {
    "one": lambda: [send.job(7)],
    "several": lambda: [send.job(number) for number in range(3)],
    "of another type": lambda: [Job("unknown", 7)],
    "later": lambda: [send.job(7, delay=timedelta(hours=1))],
    "blocked": lambda: [send.job(7, blockers=[send.job(8)])],
}


@pytest.mark.slow
@pytest.mark.parametrize("create", CREATED.values(), ids=CREATED.keys())
@pytest.mark.parametrize("is_deduplicated", [False, True])
async def test_every_column_of_a_new_job_is_readable_in_async_code(
    create: Callable[[], list[Job]], is_deduplicated: bool, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    added = create()
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        for number, job in enumerate(added):
            if is_deduplicated:
                await aio.enqueue(session, job, deduplicate=f"key {number}")
            else:
                session.add(job)
        await session.flush()
        flushed = [values(job) for job in added]
        await session.commit()
        assert [values(job) for job in added] == flushed
    for job, columns in zip(added, flushed, strict=True):
        row = jobs.get(job.id)
        assert {name: columns[name] for name in ("changed_xid", "queue", "priority", "scheduled_at", "created_at")} == {
            name: row[name] for name in ("changed_xid", "queue", "priority", "scheduled_at", "created_at")
        }
        assert columns["status"] in {JobStatus.PENDING, JobStatus.BLOCKED}


def test_every_column_of_a_new_job_is_readable_after_a_session_that_does_not_expire(engine: Engine) -> None:
    with Session(engine, expire_on_commit=False) as session, session.begin():
        job, _ = enqueue(session, send.job(7))
    assert values(job)["changed_xid"] > 0


async def test_a_new_job_of_an_async_session_is_readable_between_flush_and_commit(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        session.add(job := send.job(7))
        await session.flush()
        assert values(job)["changed_xid"] > 0
