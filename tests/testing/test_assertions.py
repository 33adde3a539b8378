"""`enqueued`, `assert_enqueued`, `assert_not_enqueued`; `perform`, `make_job`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Blockers, Continuation, Job, JobQueue, JobStatus, Snooze
from sa_jobqueue.errors import InvalidOptionError, InvalidOutputError, InvalidPayloadError
from sa_jobqueue.testing import assert_enqueued, assert_not_enqueued, drain, enqueued, make_job, perform

jobs = JobQueue()
MINUTE = timedelta(minutes=1)


@dataclass
class Address:
    city: str
    street: str


@dataclass
class Parcel:
    order_id: int
    to: Address


@jobs.handler("ship", queue="parcels")
def ship(parcel: Parcel) -> None: ...


@jobs.handler("count")
def count(n: int, ctx: AttemptContext, session: Session) -> int:
    if ctx.attempt == 1:
        raise Snooze(MINUTE)
    return n + session.scalars(select(func.count()).select_from(Job)).one()


@jobs.handler("total")
async def total(blockers: Blockers[list[int]]) -> int:
    return sum(blockers.outputs)


HERE = Parcel(7, Address("Bern", "Main 1"))


def test_enqueued_jobs_match_by_partial_input_payload_or_predicate(session: Session) -> None:
    session.add_all([ship.job(HERE, delay=MINUTE, priority=3), ship.job(Parcel(8, Address("Basel", "Main 2")))])
    assert len(enqueued(session, ship)) == len(enqueued(session, Job)) == 2
    for matching in ({"order_id": 7}, {"to": {"city": "Bern"}}, HERE, lambda job: job.input["order_id"] == 7):
        assert assert_enqueued(session, ship, matching, count=1).input["order_id"] == 7
    assert_enqueued(session, ship, {"order_id": 7}, delay=MINUTE, priority=3, queue="parcels")
    assert_not_enqueued(session, ship, {"order_id": 7, "to": {"city": "Basel"}})
    assert_not_enqueued(session, count)
    drain(jobs, session)
    assert [job.input["order_id"] for job in enqueued(session, ship)] == [7]


def test_a_failed_assertion_shows_the_jobs_that_are_enqueued(session: Session) -> None:
    with pytest.raises(
        AssertionError, match=r"jobs of type .ship. with input=.*: 0 enqueued, expected at least 1; none of any"
    ):
        assert_enqueued(session, ship, {"order_id": 7})
    session.add_all([ship.job(HERE), ship.job(Parcel(9, Address("Genf", "Quai 1")))])
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(session, ship, {"order_id": 7, "to": {"city": "Thun"}}, delay=MINUTE)
    message = str(caught.value)
    assert (
        'delay=0:01:00: 0 enqueued, expected at least 1; enqueued are:\n  ship {"order_id": 7, "to": {"city": "Bern"'
        in message
    )
    with pytest.raises(AssertionError, match="2 enqueued, expected 1; enqueued are:"):
        assert_enqueued(session, ship, count=1)
    with pytest.raises(AssertionError, match="2 enqueued, expected none; enqueued are:"):
        assert_not_enqueued(session, ship)


def test_invalid_assertion_arguments_are_refused(session: Session) -> None:
    with pytest.raises(InvalidOptionError, match="colour: is not an attribute of Job"):
        enqueued(session, ship, colour="red")
    with pytest.raises(InvalidOptionError, match="must be a handler or a class such as Job, got 'ship'"):
        enqueued(session, "ship")  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="needs a handler instead of a class"):
        enqueued(session, Job, HERE)


async def test_assertions_and_make_job_work_with_an_async_session(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        session.add(ship.job(HERE))
        assert (await assert_enqueued(session, ship, HERE)).input["order_id"] == 7
        assert len(await enqueued(session, ship)) == 1
        await assert_not_enqueued(session, count)
        new_job = await make_job(session, ship, HERE, status="completed")
        assert new_job.status is JobStatus.COMPLETED


def test_performing_a_handler_checks_the_payload_and_the_output(session: Session) -> None:
    with pytest.raises(Snooze):
        perform(count, 1, session=session)
    assert perform(count, 1, session=session, attempt=2) == 1
    with pytest.raises(InvalidPayloadError, match="should be a valid integer"):
        perform(count, "one", session=session)
    with pytest.raises(InvalidOptionError, match="session: is needed"):
        perform(count, 1)
    queue = JobQueue()

    @queue.handler("wrong")
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    @queue.handler("goes_on")
    def continues(ctx: AttemptContext) -> Any:
        assert ctx.job.last_error["message"] == "before"
        return ctx.continue_with(wrong, None)

    with pytest.raises(InvalidOutputError, match="should be a valid integer"):
        perform(wrong)
    assert isinstance(perform(continues, last_error=ValueError("before")), Continuation)


async def test_performing_an_async_handler_is_awaited(session: Session) -> None:
    assert await perform(total, blockers=[1, 2, 3]) == 6


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.BLOCKED])
def test_make_job_creates_a_job_in_any_status(session: Session, status: JobStatus) -> None:
    job = make_job(session, count, 1, status=status, output=5 if status is JobStatus.COMPLETED else None)
    assert (job.status, job.output) == (status, 5 if status is JobStatus.COMPLETED else None)
    dead_letters = session.scalars(select(Job.DeadLetter)).all()
    assert len(dead_letters) == (status is JobStatus.DEAD)


def test_make_job_creates_a_blocked_or_retrying_job(session: Session) -> None:
    assert make_job(session, total, status="blocked", blockers=[count.job(1)]).status is JobStatus.BLOCKED
    retried = make_job(session, count, 1, error=ValueError("no"))
    assert (retried.status, retried.attempt) == (JobStatus.PENDING, 1)
    assert "'message': 'no'" in str(retried.last_error)
    with pytest.raises(InvalidOptionError, match="blocked needs blockers="):
        make_job(session, total, status="blocked")
