"""The deadline of a job: waiting, running or retried, it ends then, and so do the jobs that it waits for."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, ChildJob, Job, JobQueue, JobStatus, Timer, Worker
from sa_jobqueue.context import Continuation
from sa_jobqueue.events import JobCancelled, JobRescheduled
from sa_jobqueue.operations import Cause, complete_job, enqueue_many, explain_job
from sa_jobqueue.policies.retry import immediately
from tests.fixtures import isolated
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, rows, write
from tests.fixtures.workers import PATIENCE, drain, quick, until, working

pytestmark = pytest.mark.every_python

HOUR = timedelta(hours=1)
LATER = datetime(2100, 1, 1, tzinfo=UTC)
ERROR = "sa_jobqueue.errors.DeadlinePassedError"


def set_deadline(engine: Engine, job_id: Any, value: Any = None) -> None:
    """Set the deadline of a job, by default now."""
    write(engine, update(Job).where(Job.id == job_id).values(deadline=func.now() if value is None else value))


def end_attempts_soon(engine: Engine) -> None:
    """Make the deadline of every job that starts a moment after its start, however long it has waited for that."""
    with engine.begin() as connection:
        body = "BEGIN NEW.deadline := now() + interval '100 ms'; RETURN NEW; END"
        connection.execute(text(f"CREATE FUNCTION soon() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"))
        connection.execute(
            text(
                "CREATE TRIGGER tr_soon BEFORE UPDATE ON job FOR EACH ROW WHEN (OLD.status = 'pending' AND "
                "NEW.status = 'running') EXECUTE FUNCTION soon()"
            )
        )


@own_database
@both_servers
@pytest.mark.parametrize("kind", ["async", "sync", "extended", "isolated"])
async def test_a_running_attempt_ends_at_the_deadline_and_the_job_does_not_run_again(
    engine: Engine, jobs: Jobs, kind: str
) -> None:
    queue = JobQueue()
    reasons: list[str | None] = []

    @queue.handler("async", timeout=HOUR, retry=immediately)
    async def asynchronous(payload: None, ctx: AttemptContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)

    @queue.handler("sync", retry=immediately)
    def synchronous(payload: None, ctx: AttemptContext) -> None:
        assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        reasons.append(ctx.cancel_reason)

    @queue.handler("extended", timeout=HOUR, retry=immediately)
    def extended(payload: None, ctx: AttemptContext) -> None:
        ctx.extend(2 * HOUR)
        synchronous(payload, ctx)

    end_attempts_soon(engine)
    if kind == "isolated":
        (job_id,) = enqueue(engine, isolated.heeds_async.job(timeout=HOUR, max_attempts=5))
    else:
        (job_id,) = enqueue(engine, queue.job(kind, None))
    worker = Worker(isolated.jobs if kind == "isolated" else queue, engine, options=quick())
    async with working(worker) as log:
        [event] = await log.until(JobCancelled)
    row = jobs.get(job_id)
    assert (event.job_id, row["status"], row["attempt"]) == (job_id, JobStatus.CANCELLED, 1)
    assert row["last_error"]["type"] == ERROR
    assert row["last_error"]["message"] == f"did not end by its deadline, {row['deadline']}"
    assert row["chain_completed_at"] is not None
    assert [attempt["outcome"] for attempt in jobs.attempts(job_id)] == ["timed_out"]
    assert jobs.dead_letters(job_id) == []  # it could not run again
    assert reasons == ([] if kind == "isolated" else ["timed_out"])


@both_servers
async def test_a_waiting_job_is_cancelled_at_its_deadline(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    ran: list[str] = []

    @queue.handler("test")
    async def work(payload: str) -> None:
        ran.append(payload)

    late, later = enqueue(engine, work.job("late", deadline=LATER), work.job("retried", deadline=LATER, delay=HOUR))
    (in_time,) = enqueue(engine, work.job("in time", deadline=func.now() + HOUR))
    for job_id in (late, later):
        set_deadline(engine, job_id)
    with Session(engine) as session:
        explanation = explain_job(session, late)
        assert (explanation.cause, explanation.evidence["deadline"]) == (Cause.NO_WORKER, jobs.get(late)["deadline"])
        assert re.search(r" Its deadline is in (1 h|59 min \d+ s)\.$", explain_job(session, in_time).sentence)
    async with working(Worker(queue, engine, options=quick())) as log:
        await log.until(JobCancelled, 2)
        await until(lambda: jobs.status(in_time) is JobStatus.COMPLETED, description="the other one completes")
    assert ran == ["in time"]
    for job_id in (late, later):
        row = jobs.get(job_id)
        assert (row["status"], row["attempt"], row["last_error"]["type"]) == (JobStatus.CANCELLED, 0, ERROR)
        assert row["last_error"]["message"].startswith("did not end by its deadline, ")


async def test_no_retry_begins_after_the_deadline(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("test", retry=lambda attempt, error: 2 * HOUR)
    async def fail(payload: None) -> None:
        raise ValueError("no route")

    (job_id,) = enqueue(engine, fail.job(None, deadline=func.now() + HOUR))
    async with working(Worker(queue, engine, options=quick())) as log:
        await log.until(JobRescheduled)
        assert jobs.status(job_id) is JobStatus.PENDING  # until its deadline: its error can be seen, and it can be moved
        assert jobs.get(job_id)["last_error"]["message"] == "no route"
        set_deadline(engine, job_id)
        await log.until(JobCancelled)
    assert (jobs.get(job_id)["attempt"], jobs.get(job_id)["last_error"]["type"]) == (1, ERROR)


def parents() -> JobQueue[Any]:
    """Return handlers that wait without a slot, for a job that does not end, an event and a timer."""
    queue: JobQueue[Any] = JobQueue()
    unserved: JobQueue[Any] = JobQueue()

    @unserved.handler("never")
    def never(payload: None) -> None: ...

    @queue.handler("child")
    def child(payload: None, ctx: AttemptContext) -> None:
        ctx.run(never)

    @queue.handler("all")
    def all_of_them(payload: None, ctx: AttemptContext) -> None:
        ctx.all(ChildJob(never, key=1), ChildJob(never, key=2, deadline=LATER))

    @queue.handler("first")
    def first(payload: None, ctx: AttemptContext) -> None:
        ctx.first("either", ChildJob(never), Timer("timer", 3 * HOUR))

    @queue.handler("earlier")
    def earlier(payload: None, ctx: AttemptContext) -> None:
        ctx.run(never, deadline=func.now() + timedelta(minutes=1))

    @queue.handler("expression")
    def expression(payload: None, ctx: AttemptContext) -> None:
        ctx.run(never, deadline=func.now() + 9 * HOUR)

    @queue.handler("event")
    def event(payload: None, ctx: AttemptContext) -> None:
        ctx.wait_for("event", event="approved", timeout=3 * HOUR)

    @queue.handler("sleep")
    def sleep(payload: None, ctx: AttemptContext) -> None:
        ctx.sleep("sleep", 3 * HOUR)

    return queue


@both_servers
@pytest.mark.parametrize("kind", ["child", "all", "first", "event", "sleep"])
async def test_a_job_that_waits_in_a_step_ends_at_its_deadline(engine: Engine, jobs: Jobs, kind: str) -> None:
    (job_id,) = enqueue(engine, parents().job(kind, None, deadline=LATER))
    async with working(Worker(parents(), engine, options=quick())) as log:
        await log.until(JobRescheduled)
        set_deadline(engine, job_id)
        await log.until(JobCancelled)
    row = jobs.get(job_id)
    assert (row["status"], row["last_error"]["type"]) == (JobStatus.CANCELLED, ERROR)


@pytest.mark.parametrize("kind", ["child", "all", "first", "earlier", "expression"])
async def test_children_have_the_deadline_of_their_parent_unless_theirs_is_earlier(
    engine: Engine, jobs: Jobs, kind: str
) -> None:
    (job_id,) = enqueue(engine, parents().job(kind, None, deadline=func.now() + 2 * HOUR))
    await drain(parents(), engine)
    deadline = jobs.get(job_id)["deadline"]
    children = rows(engine, select(Job.deadline, Job.expires_at).where(Job.type_name == "never"))
    assert len(children) == (2 if kind == "all" else 1)
    for child in children:
        assert child.deadline == child.expires_at
        assert child.deadline < deadline - HOUR if kind == "earlier" else child.deadline == deadline


async def test_the_jobs_of_a_chain_have_the_deadline_of_the_one_before(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("last")
    async def last(payload: None) -> None: ...

    @queue.handler("first")
    async def first(payload: None) -> Continuation[None]:
        return last.continuation(payload, deadline=LATER)

    @queue.handler("in_session")
    def in_session(payload: None, session: Session) -> Continuation[None]:
        return last.continuation(payload)

    deadline = datetime.now(UTC) + 2 * HOUR
    ids = enqueue(engine, *(handler.job(None, deadline=deadline) for handler in (first, in_session, last)), first.job(None))
    call(engine, complete_job, ids[2], last.continuation(None), handler=None)
    await drain(queue, engine)
    with engine.connect() as connection:
        query = select(Job.chain_id, Job.deadline).where(Job.chain_index == 1)
        deadlines = dict(connection.execute(query).all())
    assert deadlines == {ids[0]: deadline, ids[1]: deadline, ids[2]: deadline, ids[3]: LATER}


@pytest.mark.parametrize("write", ["session.add", "enqueue_many", "SQL"])
@pytest.mark.parametrize(
    ("expires_at", "starts_by"),
    [(None, LATER), (LATER + HOUR, LATER), (LATER - HOUR, LATER - HOUR)],
    ids=["alone", "earlier than expires_at", "later than expires_at"],
)
def test_no_attempt_may_start_after_the_deadline_however_the_job_is_written(
    engine: Engine, jobs: Jobs, write: str, expires_at: datetime | None, starts_by: datetime
) -> None:
    if write == "SQL":
        job_id: Any = jobs.add(deadline=LATER, expires_at=expires_at)
    else:
        new = Job("test", deadline=LATER, expires_at=expires_at)
        with Session(engine) as session, session.begin():
            session.add(new) if write == "session.add" else enqueue_many(session, [new, Job("test")])
            job_id = new.id
    assert (jobs.get(job_id)["deadline"], jobs.get(job_id)["expires_at"]) == (LATER, starts_by)
    set_deadline(engine, job_id, LATER - 2 * HOUR)
    assert jobs.get(job_id)["expires_at"] == LATER - 2 * HOUR
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == job_id).values(expires_at=LATER))
    assert jobs.get(job_id)["expires_at"] == LATER - 2 * HOUR
