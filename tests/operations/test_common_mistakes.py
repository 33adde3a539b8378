"""Typical first attempts and mistakes of a newcomer: they work, or the error names the correct form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, delete
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import Deduplicate, Enqueued, Job, JobQueue, JobStatus, Snooze, aio, enqueue, sequence
from sa_jobqueue.errors import InvalidHandlerError, InvalidJobError, InvalidOptionError
from sa_jobqueue.events import JobDied
from sa_jobqueue.testing import drain, enqueued
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import Start


def handlers() -> Any:
    queue = JobQueue()

    @queue.handler("send", max_attempts=1)
    def send(order: dict[str, Any]) -> Any:
        return Snooze(timedelta(hours=1))

    return queue, send


def test_enqueue_without_deduplication_adds_the_job(session: Session, jobs: Jobs) -> None:
    _, send = handlers()
    job, outcome = enqueue(session, send.job({"order_id": 7}))
    assert (job in session, outcome) == (True, Enqueued.CREATED)
    with pytest.raises(InvalidJobError, match="is or was in a session"):
        enqueue(session, job)
    session.commit()
    session.expunge_all()
    with pytest.raises(InvalidJobError, match="is or was in a session"):
        enqueue(session, job)  # nothing would be written
    assert jobs.statuses() == {job.id: JobStatus.PENDING}


async def test_async_enqueue_without_deduplication_adds_the_job_and_sync_refuses_async_sessions(
    async_engine: AsyncEngine, jobs: Jobs
) -> None:
    _, send = handlers()
    async with AsyncSession(async_engine) as session, session.begin():
        _, outcome = await aio.enqueue(session, send.job({}))
        assert outcome is Enqueued.CREATED
        wrong: Any = session
        with pytest.raises(InvalidOptionError, match=r"is an AsyncSession: await sa_jobqueue\.aio\.enqueue\("):
            enqueue(wrong, send.job({}))
    assert jobs.count() == 1


def test_a_payload_passed_as_keywords_raises_a_helpful_error() -> None:
    _, send = handlers()
    with pytest.raises(
        InvalidJobError, match=r"order_id: is neither an option nor a column of Job; the payload is the first"
    ):
        send.job(order_id=7)


@pytest.mark.parametrize("name", ["delay", "defer", "apply_async"])
def test_method_names_of_other_libraries_raise_a_helpful_error(name: str) -> None:
    _, send = handlers()
    with pytest.raises(AttributeError, match=rf"a handler has no '{name}': enqueue with `\.enqueue\(session, payload"):
        getattr(send, name)
    assert not hasattr(send, "wrapped")


def test_a_decorator_without_parentheses_raises_a_helpful_error() -> None:
    decorated: Any = JobQueue().handler

    def send() -> None: ...

    with pytest.raises(InvalidHandlerError, match=r'@jobs\.handler\("send"\), not @jobs\.handler without parentheses'):
        decorated(send)


def test_the_id_of_a_job_is_readable_after_the_commit_and_without_a_session(engine: Engine) -> None:
    _, send = handlers()
    job = send.job({})
    with Session(engine) as session, session.begin():
        session.add(job)
    assert isinstance(job.id, UUID)
    with Session(engine) as session:
        loaded = session.get_one(Job, job.id)
        session.expire(loaded)
        assert (loaded.id, loaded.status) == (job.id, JobStatus.PENDING)
        session.execute(delete(Job).execution_options(synchronize_session=False))
        session.commit()
        assert session.get(Job, job.id) is None


def test_deduplicate_accepts_a_plain_key_and_named_policies(session: Session) -> None:
    _, send = handlers()
    first, _ = enqueue(session, send.job({}), deduplicate="shop 7")
    assert enqueue(session, send.job({}), deduplicate="shop 7") == (first, Enqueued.EXISTING)
    hour = timedelta(hours=1)
    assert Deduplicate.throttle("k", hour) == Deduplicate("k", scope="any", window=hour)
    quiet = Deduplicate.debounce("other", max_wait=hour)
    enqueue(session, send.job({"n": 1}, delay=timedelta(minutes=1)), deduplicate=quiet)
    job, outcome = enqueue(session, send.job({"n": 2}, delay=timedelta(minutes=1)), deduplicate=quiet)
    assert (job.input, outcome) == ({"n": 2}, Enqueued.UPDATED)
    with pytest.raises(InvalidJobError, match="deduplication_key: must be text"):
        enqueue(session, send.job({}), deduplicate="")


def test_a_sequence_of_jobs_runs_one_after_another(session: Session) -> None:
    queue, numbers = JobQueue(), []

    @queue.handler("step")
    def step(n: int) -> None:
        numbers.append(n)

    last = sequence(*(step.job(n) for n in (3, 1, 2)))
    session.add(last)
    session.flush()
    assert len(enqueued(session, step)) == 3
    drain(queue, session)
    assert (numbers, last.status) == ([3, 1, 2], JobStatus.COMPLETED)
    with pytest.raises(InvalidJobError, match=r"jobs\[1\]: is in a session already"):
        sequence(step.job(1), last)
    with pytest.raises(InvalidJobError, match=r"jobs\[0\]: must be a job"):
        sequence(step)
    with pytest.raises(InvalidJobError, match="at least one"):
        sequence()


async def test_returning_a_signal_instead_of_raising_it_is_an_error(start: Start, engine: Engine) -> None:
    queue, send = handlers()
    with Session(engine) as session, session.begin():
        session.add(send.job({}))
    async with start(queue) as log:
        (died,) = await log.until(JobDied)
    assert died.error["message"] == "the handler returned Snooze(...): raise it, as in `raise Snooze(...)`"
