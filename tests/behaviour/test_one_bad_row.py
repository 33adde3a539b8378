"""Each row of the corpus of inconsistent rows beside healthy jobs of every kind: they end, and it ends or is named."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Discard, Job, JobQueue, JobStatus, Schedule
from sa_jobqueue.events import ComponentFailed, ScheduleFired
from sa_jobqueue.models import WaitFor
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.operations import upsert_schedule
from sa_jobqueue.types import ENDED
from tests.fixtures.inconsistent_rows import CASES, ONLY_REFUSED, Case, force, set_up, write
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import Start, until

QUEUE = "bad"
"""Where the inconsistent rows are."""
ALWAYS = {
    "an edge of a job that does not wait",
    "a job with fewer edges than it counts",
    "a job released by hand",
    "an attempt lowered between two",
    "an unresolved dead letter of a job that runs",
    "endless tokens",
    "a schedule with next_fire_at -infinity",
}
"""One of each kind."""
_HEALTHY = [JobStatus.COMPLETED] * 5 + [JobStatus.DEAD] * 2 + [JobStatus.CANCELLED] * 2 + [JobStatus.COMPLETED] * 3


def mark(case: Case) -> Any:
    return pytest.param(case, id=str(case), marks=[] if case.name in ALWAYS else [pytest.mark.long])


@pytest.mark.parametrize("case", [mark(case) for case in CASES])
async def test_one_inconsistent_row_does_not_delay_any_kind_of_job(
    case: Case, engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue = JobQueue()
    roots: set[Any] = set()

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        if ctx.job.queue == QUEUE and ctx.job.id not in roots:
            raise Discard("it was written by hand")

    @queue.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("it fails")

    @queue.handler("good")
    async def good() -> None: ...

    with engine.begin() as connection:
        given = set_up(connection, case, queue=QUEUE)
    roots |= {given["root"], given["root2"]}
    with engine.begin() as connection:
        (force if case.refused else write)(connection, case, given)
    late = func.now() - timedelta(minutes=1)
    with Session(engine, expire_on_commit=False) as session, session.begin():
        made = [good.job(), good.job()]
        waits_for: list[Any] = list(made)
        if session.get(Job, given["root"]) is not None:
            waits_for.append(WaitFor(given["root"], on_failure="continue"))
        made += [good.job(blockers=waits_for) for _ in range(3)]
        made += [fails.job(), fails.job()]
        session.add_all(made)
        upsert_schedule(session, Schedule(name="healthy", cron="* * * * *", type_name="good"))
        session.execute(update(Job.Schedule).where(Job.Schedule.name == "healthy").values(next_fire_at=late))
    healthy = [job.id for job in made]
    healthy += [jobs.add(type_name="good", expires_at=late) for _ in range(2)]
    healthy += [jobs.add(JobStatus.RUNNING, type_name="good") for _ in range(3)]
    jobs.add(queue=QUEUE)
    jobs.add_worker(silent_for=3600)
    often = {"heartbeat_interval": timedelta(milliseconds=100), "prune_interval": timedelta(milliseconds=100)}
    async with start(queue, queues=("default", QUEUE), **often) as log:
        await until(lambda: [jobs.status(job_id) for job_id in healthy] == _HEALTHY, what="all healthy jobs have ended")
        await until(lambda: any(one.schedule == "healthy" for one in log.of(ScheduleFired)), what="the schedule has fired")
        if case.name not in ONLY_REFUSED:
            await until(lambda: not unnamed(engine), what="the inconsistent rows have ended, or are named")
    assert [one.error for one in log.of(ComponentFailed)] == []


def unnamed(engine: Engine) -> list[Any]:
    """Return the jobs of the row that have not ended and that health does not name; a blocked one holds up itself alone."""
    found = health(engine).findings
    named = {one.evidence.get("subject") for one in found if one.code is Code.QUARANTINED}
    paused = select(Job.Queue.name).where(Job.Queue.paused_at.is_not(None))
    left = select(Job.id).where(Job.queue == QUEUE, Job.status.not_in([*ENDED, JobStatus.BLOCKED]), Job.queue.not_in(paused))
    with engine.connect() as connection:
        return [job_id for job_id in connection.scalars(left) if str(job_id) not in named]
