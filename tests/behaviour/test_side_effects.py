"""Side effects that a handler registers on its session follow its completion's commit, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue, JobStatus, cancel_jobs
from sa_jobqueue.events import AttemptLost, JobCompleted
from sa_jobqueue.operations import after_commit
from tests.behaviour.test_attempts import drain, enqueue
from tests.fixtures.jobs import Jobs


def both_colours(act: Any) -> JobQueue[Any]:
    """Return a queue with the same handler in both colours: it does what `act(session, ctx)` does."""
    queue = JobQueue()

    @queue.handler("sync", max_attempts=1)
    def synchronous(payload: Any, session: Session, ctx: AttemptContext) -> None:
        act(session, ctx)

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: Any, session: AsyncSession, ctx: AttemptContext) -> None:
        act(session, ctx)

    return queue


async def test_they_follow_the_commit_of_the_completion(engine: Engine, jobs: Jobs) -> None:
    seen: list[tuple[str, JobStatus]] = []

    def act(session: Any, ctx: AttemptContext) -> None:
        after_commit(session, lambda: seen.append((ctx.job.type_name, jobs.status(ctx.job.id))))

    queue = both_colours(act)
    enqueue(engine, queue.job("sync"), queue.job("async"))
    await drain(queue, engine)
    assert sorted(seen) == [("async", JobStatus.COMPLETED), ("sync", JobStatus.COMPLETED)]


async def test_one_that_raises_leaves_the_completion_as_it_is(
    engine: Engine, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    queue = both_colours(lambda session, ctx: after_commit(session, lambda: 1 / 0))
    ids = enqueue(engine, queue.job("sync"), queue.job("async"))
    log = await drain(queue, engine)
    assert {jobs.status(job_id) for job_id in ids} == {JobStatus.COMPLETED}
    assert (len(log.of(JobCompleted)), len(log.of(AttemptLost))) == (2, 0)
    assert len([record for record in caplog.records if record.name == "sa_jobqueue.hooks"]) == 2


async def test_an_attempt_that_fails_or_is_lost_has_none(engine: Engine, jobs: Jobs) -> None:
    ran: list[Any] = []

    def act(session: Any, ctx: AttemptContext) -> None:
        after_commit(session, ran.append, ctx.job.input)
        if ctx.job.input == "fails":
            raise ValueError
        with Session(engine) as other, other.begin():
            cancel_jobs(other, [ctx.job.id])

    queue = both_colours(act)
    enqueue(engine, *(queue.job(colour, end) for colour in ("sync", "async") for end in ("fails", "is lost")))
    await drain(queue, engine)
    assert sorted(jobs.statuses().values()) == [*[JobStatus.CANCELLED] * 2, *[JobStatus.DEAD] * 2]
    assert ran == []
