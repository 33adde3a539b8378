"""A worker claims the jobs that it can run: payloads newer than its handlers wait for another worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, func, insert, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.operations import Cause, explain_job, list_workers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import drain, quick, until, working

pytestmark = pytest.mark.every_python


def shipping(version: int, shipped: list[Any], **options: Any) -> JobQueue[Any]:
    """Return a queue as a deployment declares it."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("ship", version=version, **options)
    async def ship(order: int) -> None:
        shipped.append((version, order))

    return queue


def add(engine: Engine, order: int, version: int, **columns: Any) -> Any:
    """Return the id of a job that a producer of another deployment has written."""
    with Session(engine) as session, session.begin():
        job_id = uuid4()
        values = {"id": job_id, "chain_id": job_id, "type_name": "ship", "chain_type_name": "ship", "queue": "default"}
        session.execute(insert(Job).values(**values, input=order, input_version=version, **columns))
    return job_id


def is_registered(engine: Engine) -> bool:
    return bool(call(engine, list_workers).items)


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["shared lane", "own lane"])
async def test_a_worker_leaves_newer_payloads_to_another_worker(engine: Engine, jobs: Jobs, options: Any) -> None:
    shipped: list[Any] = []
    newer, older = add(engine, 3, 3), add(engine, 2, 2)
    await drain(shipping(2, shipped, **options), engine)
    assert shipped == [(2, 2)]
    assert (jobs.status(older), jobs.status(newer)) == (JobStatus.COMPLETED, JobStatus.PENDING)
    assert jobs.get(newer)["attempt"] == 0
    await drain(shipping(3, shipped, **options), engine)
    assert shipped == [(2, 2), (3, 3)]


async def test_newer_payloads_that_arrive_while_a_worker_runs_do_not_keep_it_busy(engine: Engine, jobs: Jobs) -> None:
    """They arrive by notification, behind and after the cursor, and stay the due head of a lane that was read to its end."""
    shipped: list[Any] = []
    async with working(Worker(shipping(2, shipped), engine, options=quick(poll_interval=timedelta(seconds=30)))):
        enqueue(engine, shipping(2, shipped).job("ship", 1))
        await until(lambda: len(shipped) == 1)
        newer = [add(engine, order, 3) for order in range(3)]
        enqueue(engine, shipping(2, shipped).job("ship", 2))
        await until(lambda: len(shipped) == 2)
        with engine.connect() as connection:
            statements = text("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database")
            before = connection.scalar(statements)
            connection.execute(text("SELECT pg_sleep(1)"))
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_stat_clear_snapshot()"))
            assert connection.scalar(statements) - before < 60
    assert {jobs.status(job_id) for job_id in newer} == {JobStatus.PENDING}


async def test_a_payload_that_is_older_than_all_upcasters_still_dies(engine: Engine, jobs: Jobs) -> None:
    queue = shipping(2, [], max_attempts=1)
    (job_id,) = enqueue(engine, queue.job("ship", 1))
    write(engine, "UPDATE job SET input_version = 1")
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    assert jobs.get(job_id)["last_error"]["type"].endswith("UnreadableInputError")


async def test_a_newer_payload_keeps_its_place_in_its_ordering_key(engine: Engine, jobs: Jobs) -> None:
    shipped: list[Any] = []
    newer = add(engine, 3, 3, ordering_key="order 7")
    later = add(engine, 2, 2, ordering_key="order 7")
    await drain(shipping(2, shipped), engine)
    assert (jobs.status(newer), jobs.status(later)) == (JobStatus.PENDING, JobStatus.PENDING)
    await drain(upcasting(shipped), engine)
    assert [order for _, order in shipped] == [3, 2]


def upcasting(shipped: list[Any]) -> JobQueue[Any]:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("ship", version=3)
    async def ship(order: int) -> None:
        shipped.append((3, order))

    ship.upcast(from_version=2)(lambda order: order)
    return queue


async def test_explain_says_which_version_waits_for_which_deployment(engine: Engine) -> None:
    async with working(Worker(shipping(2, []), engine, options=quick())):
        job_id = add(engine, 3, 3)
        await until(lambda: is_registered(engine))
        with Session(engine) as session:
            [worker] = list_workers(session).items
            assert worker.type_versions == {"ship": 2}
            explanation = explain_job(session, job_id)
        assert explanation.cause is Cause.VERSION_UNKNOWN
        assert "its payload has version 3 of 'ship', while 1 worker knows up to version 2" in explanation.sentence
        assert "deployment with version 3" in explanation.sentence
        with Session(engine) as session, session.begin():
            assert session.scalar(select(func.count()).where(Job.status == JobStatus.PENDING)) == 1
