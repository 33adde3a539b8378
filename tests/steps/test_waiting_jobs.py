"""Jobs that are enqueued waiting for events: blocked until the last one is sent, with the payloads as their blockers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Blockers, Job, JobQueue, JobStatus, cancel_jobs, operations
from sa_jobqueue.errors import InvalidOptionError, InvalidPayloadError
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.worker.background.pruner import Pruner
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import drain, shared

pytestmark = pytest.mark.every_python

OnFailure = Literal["wait", "fail", "continue"]


@dataclass
class Verdict:
    by: str
    ok: bool


@dataclass
class Waiting:
    """A handler that waits for events, and those that send them."""

    engine: Engine
    jobs: JobQueue[Any]
    approval: Handler[str, Verdict, Job]
    ship: Any

    def enqueue(self, *events: str, on_failure: OnFailure = "fail") -> Any:
        """Return the id of a new job that waits for events."""
        with Session(self.engine) as session, session.begin():
            blockers = [self.approval.blocker(event, on_failure=on_failure) for event in events]
            return self.ship.enqueue(session, blockers=blockers)

    def send(self, event: str, by: str, *, commit: bool = True) -> bool:
        """Send an event; return whether it is the first."""
        with Session(self.engine) as session:
            is_first = operations.send_event(session, event, Verdict(by, True))
            session.commit() if commit else session.rollback()
            return is_first


@pytest.fixture
def waiting(engine: Engine) -> Waiting:
    jobs: JobQueue[Any] = JobQueue()
    approval = jobs.event("approval", timeout=timedelta(hours=1), output=Verdict)

    @jobs.handler("ship")
    async def ship(blockers: Blockers[list[Verdict | None]]) -> list[str]:
        return [output.by if output else "nobody" for output in blockers.outputs]

    return Waiting(engine, jobs, approval, ship)


def make_due(engine: Engine) -> None:
    """Let every wait have timed out."""
    with engine.begin() as connection:
        past = func.now() - timedelta(seconds=1)
        connection.execute(update(Job).where(Job.completed_at.is_(None)).values(scheduled_at=past))
        connection.execute(update(Job.Step).where(Job.Step.completed_at.is_(None)).values(deadline=past))


def output_of(jobs: Jobs, job_id: Any) -> Any:
    return jobs.get(job_id)["output"]


async def test_a_job_is_blocked_until_the_last_of_its_events(waiting: Waiting, jobs: Jobs) -> None:
    job_id = waiting.enqueue("a", "b")
    assert (jobs.status(job_id), jobs.get(job_id)["open_blockers"]) == (JobStatus.BLOCKED, 2)
    await drain(waiting.jobs, waiting.engine)
    assert waiting.send("b", "bob")
    await drain(waiting.jobs, waiting.engine)
    assert (jobs.status(job_id), jobs.get(job_id)["open_blockers"]) == (JobStatus.BLOCKED, 1)
    assert waiting.send("a", "ann")
    assert not waiting.send("a", "eve")
    await drain(waiting.jobs, waiting.engine)
    assert output_of(jobs, job_id) == ["ann", "bob"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the job", "before the wait", "during the wait"])
async def test_an_event_counts_whenever_it_was_sent(waiting: Waiting, jobs: Jobs, when: str) -> None:
    if when == "before the job":
        waiting.send("a", "ann")
    job_id = waiting.enqueue("a")
    if when == "before the wait":
        waiting.send("a", "ann")
    await drain(waiting.jobs, waiting.engine)
    if when == "during the wait":
        assert jobs.status(job_id) is JobStatus.BLOCKED
        waiting.send("a", "ann")
        await drain(waiting.jobs, waiting.engine)
    assert output_of(jobs, job_id) == ["ann"]


async def test_an_event_that_is_rolled_back_unblocks_nothing(waiting: Waiting, jobs: Jobs) -> None:
    job_id = waiting.enqueue("a")
    await drain(waiting.jobs, waiting.engine)
    assert waiting.send("a", "eve", commit=False)
    await drain(waiting.jobs, waiting.engine)
    assert jobs.status(job_id) is JobStatus.BLOCKED


async def test_two_jobs_wait_for_one_event(waiting: Waiting, jobs: Jobs) -> None:
    job_ids = [waiting.enqueue("a"), waiting.enqueue("a")]
    await drain(waiting.jobs, waiting.engine)
    assert [(event.event, event.jobs) for event in call(waiting.engine, operations.list_awaited_events)] == [("a", 2)]
    waiting.send("a", "ann")
    await drain(waiting.jobs, waiting.engine)
    assert [output_of(jobs, job_id) for job_id in job_ids] == [["ann"], ["ann"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_failure", "expected"),
    [("wait", JobStatus.BLOCKED), ("fail", JobStatus.DEAD), ("continue", JobStatus.COMPLETED)],
)
async def test_the_blocker_says_what_a_timeout_does(
    waiting: Waiting, jobs: Jobs, on_failure: OnFailure, expected: JobStatus
) -> None:
    job_id = waiting.enqueue("a", on_failure=on_failure)
    await drain(waiting.jobs, waiting.engine)
    make_due(waiting.engine)
    await drain(waiting.jobs, waiting.engine)
    assert jobs.status(job_id) is expected
    assert expected is not JobStatus.COMPLETED or output_of(jobs, job_id) == ["nobody"]


@pytest.mark.slow
async def test_a_wait_that_timed_out_goes_on_after_a_redrive(waiting: Waiting, jobs: Jobs) -> None:
    job_id = waiting.enqueue("a", on_failure="wait")
    await drain(waiting.jobs, waiting.engine)
    make_due(waiting.engine)
    await drain(waiting.jobs, waiting.engine)
    assert call(waiting.engine, operations.redrive_dead_letters).changed == 1
    await drain(waiting.jobs, waiting.engine)
    assert jobs.status(job_id) is JobStatus.BLOCKED
    waiting.send("a", "ann")
    await drain(waiting.jobs, waiting.engine)
    assert output_of(jobs, job_id) == ["ann"]


async def test_explain_names_the_event_that_a_job_is_blocked_by(waiting: Waiting) -> None:
    job_id = waiting.enqueue("a")
    await drain(waiting.jobs, waiting.engine)
    explanation = call(waiting.engine, operations.explain_job, job_id)
    assert explanation.cause is operations.Cause.BLOCKED
    assert explanation.roots[0].cause is operations.Cause.WAITING_FOR_EVENT
    assert "It has waited for event 'a'" in explanation.sentence
    assert "sa-jobqueue events send a" in explanation.sentence


@pytest.mark.slow
async def test_a_blocked_job_can_be_cancelled_or_deleted_with_its_waits(waiting: Waiting, jobs: Jobs) -> None:
    cancelled, deleted = waiting.enqueue("a"), waiting.enqueue("b")
    await drain(waiting.jobs, waiting.engine)
    with Session(waiting.engine) as session, session.begin():
        assert cancel_jobs(session, [cancelled]).changed == 1
        operations.delete_chains(session, [deleted], cascade=True)
        assert [event.event for event in operations.list_awaited_events(session)] == ["a"]
    waiting.send("a", "ann")
    await drain(waiting.jobs, waiting.engine)
    assert jobs.status(cancelled) is JobStatus.CANCELLED
    assert jobs.count() == 2


@pytest.mark.slow
async def test_a_cancelled_wait_decides_as_a_failed_blocker(waiting: Waiting, jobs: Jobs) -> None:
    job_id = waiting.enqueue("a", on_failure="continue")
    await drain(waiting.jobs, waiting.engine)
    with Session(waiting.engine) as session, session.begin():
        (wait_id,) = session.scalars(select(Job.id).where(Job.type_name == "approval"))
        assert cancel_jobs(session, [wait_id]).changed == 1
    waiting.send("a", "ann")
    await drain(waiting.jobs, waiting.engine)
    assert output_of(jobs, job_id) == ["nobody"]


async def test_a_payload_of_another_type_names_the_event(waiting: Waiting, jobs: Jobs) -> None:
    waiting.enqueue("a", on_failure="fail")
    call(waiting.engine, operations.send_event, "a", {"by": 7})
    await drain(waiting.jobs, waiting.engine)
    with Session(waiting.engine) as session:
        errors = session.scalars(select(Job.last_error).where(Job.type_name == "approval")).all()
    assert "waits for event 'a', whose payload is no Verdict" in json.dumps(errors)


@pytest.mark.parametrize("event", ["", "x" * 201, "a\nb"])
def test_a_name_that_no_event_can_have_is_refused_before_anything_is_written(waiting: Waiting, event: str) -> None:
    with pytest.raises(InvalidPayloadError, match="must be 1 to 200 printable characters"):
        waiting.approval.blocker(event)


def test_a_timeout_that_no_wait_can_have_is_refused(waiting: Waiting) -> None:
    declare: Callable[..., Any] = waiting.jobs.event
    with pytest.raises(InvalidOptionError, match="timeout: must be a timedelta"):
        declare("other", timeout=7)


async def test_an_event_belongs_to_a_blocker_that_never_ran_even_if_it_expires(
    waiting: Waiting, jobs: Jobs, engine: Engine, async_engine: AsyncEngine
) -> None:
    """It was accepted while the job waited; no worker ran before it expired, was pruned and could be sent again."""
    job_id = waiting.enqueue("editor:9")
    with Session(engine) as session:
        (awaited,) = operations.list_awaited_events(session).items
        assert (awaited.event, awaited.jobs, awaited.times_out_at) == ("editor:9", 1, None)
    assert call(engine, operations.send_event, "editor:9", Verdict("ann", True), keep=timedelta(seconds=1))
    write(engine, update(Job.Event).values(expires_at=func.now()))
    await Pruner(shared(async_engine)).walk_events()
    assert not waiting.send("editor:9", "eve")
    await drain(waiting.jobs, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    assert output_of(jobs, job_id) == ["ann"]


async def test_the_timeout_of_a_blocker_counts_from_its_first_attempt(waiting: Waiting, engine: Engine) -> None:
    waiting.enqueue("editor:9")
    with engine.connect() as connection:
        assert connection.execute(select(Job.Step.deadline, Job.Step.attempt)).one() == (None, 0)
    await drain(waiting.jobs, engine)
    with engine.connect() as connection:
        step = connection.execute(select(Job.Step)).one()
        assert step.attempt == 1
        assert step.deadline > step.started_at
