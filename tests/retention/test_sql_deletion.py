"""A job that is deleted by SQL or through the session leaves nothing behind that a later job with its id would meet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, delete, func, insert, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Discard, Job, JobQueue, JobStatus
from sa_jobqueue.migrations.grants import RIGHTS
from sa_jobqueue.types import Resolution
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain

pytestmark = both_servers


def by_sql(session: Session, job_id: UUID) -> None:
    session.execute(text("DELETE FROM job WHERE id = :id"), {"id": job_id})


def by_statement(session: Session, job_id: UUID) -> None:
    session.execute(delete(Job).where(Job.id == job_id))


def by_session(session: Session, job_id: UUID) -> None:
    session.delete(session.get_one(Job, job_id))


WAYS = [by_sql, by_statement, by_session]


@pytest.mark.parametrize("delete_job", WAYS)
def test_the_steps_and_attempts_of_a_deleted_job_go_with_it_and_its_dead_letter_is_dismissed(
    engine: Engine, jobs: Jobs, delete_job: Callable[[Session, UUID], None]
) -> None:
    gone, kept_id = jobs.add(JobStatus.DEAD), jobs.add(JobStatus.DEAD)
    with engine.begin() as connection:
        for job_id in (gone, kept_id):
            step = {"job_id": job_id, "name": "charge", "kind": "step", "attempt": 1, "started_at": func.now()}
            connection.execute(insert(Job.Step).values(step))
            connection.execute(insert(Job.Attempt).values(job_id=job_id, attempt=1, outcome="failed"))
    with Session(engine) as session, session.begin():
        session.execute(text("SET LOCAL sa_jobqueue.actor = 'ann'"))
        delete_job(session, gone)
    with engine.connect() as connection:
        assert connection.scalars(select(Job.Step.job_id)).all() == [kept_id]
        assert connection.scalars(select(Job.Attempt.job_id)).all() == [kept_id]
    resolutions = {letter["job_id"]: (letter["resolution"], letter["resolved_by"]) for letter in jobs.dead_letters()}
    assert resolutions == {gone: (Resolution.DISMISSED, "ann"), kept_id: (None, None)}


@pytest.mark.slow
@pytest.mark.parametrize("delete_job", WAYS)
async def test_a_new_job_with_the_id_of_a_deleted_one_runs_its_own_steps_and_can_die(
    engine: Engine, jobs: Jobs, delete_job: Callable[[Session, UUID], None]
) -> None:
    queue: JobQueue[Any] = JobQueue()
    charged: list[int] = []

    @queue.handler("order", max_attempts=2, retry=lambda attempt, error: timedelta(0))
    def order(number: int, ctx: AttemptContext) -> None:
        def charge() -> int:
            charged.append(number)
            return number

        assert ctx.step("charge", charge) == number
        if ctx.attempt == 1:
            raise RuntimeError
        raise Discard("no")

    job_id = UUID(int=7)
    for number in (1, 2):
        job = order.job(number)
        job.id = job.chain_id = job_id
        enqueue(engine, job)
        await drain(queue, engine)
        assert jobs.status(job_id) is JobStatus.DEAD
        call(engine, delete_job, job_id)
    assert charged == [1, 2]
    assert [letter["resolution"] for letter in jobs.dead_letters()] == [Resolution.DISMISSED] * 2


def test_a_role_that_may_delete_jobs_may_delete_what_belongs_to_them(engine: Engine) -> None:
    deleting = {role: rights for role, rights in RIGHTS.items() if "DELETE" in rights.get("job", "")}
    assert set(deleting) == {"worker", "operator"}
    for rights in deleting.values():
        assert all("DELETE" in rights[table] for table in ("job_step", "job_attempt"))
        assert all("UPDATE" in rights[table] for table in ("job", "dead_letter"))
