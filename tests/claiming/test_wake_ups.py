"""Whatever ends a job or frees capacity, what waits for it starts at that commit, without a poll or a rescue run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, aio, cancel_jobs
from sa_jobqueue.errors import ChainFailedError
from sa_jobqueue.events import JobDied, JobRescued, JobStarted
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import cancel_chains, complete_job, delete_chains, redrive_dead_letters
from sa_jobqueue.statements import expiry
from sa_jobqueue.worker.background.heartbeat import Heartbeat
from sa_jobqueue.worker.claim import arrivals, idleness
from sa_jobqueue.worker.claim.claimer import Claimer
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import EventLog, quick, until, working

NEVER = timedelta(minutes=9)
SOON = 2.0
"""Seconds in which a worker that neither polls nor rescues again has run the job that woke it."""
HOUR = 3600

End = Callable[[Session, UUID], object]

THROUGH_THE_VIEW = text("UPDATE job_queue SET status = 'cancelled' WHERE id = :id")
BY_HAND = text("UPDATE job SET status = 'cancelled', completed_at = now(), chain_completed_at = now() WHERE id = :id")
ENDS: Final[dict[str, End]] = {
    "complete_job": complete_job,
    "cancel_jobs": lambda session, job_id: cancel_jobs(session, [job_id]),
    "cancel_chains": lambda session, job_id: cancel_chains(session, [job_id]),
    "the view": lambda session, job_id: session.execute(THROUGH_THE_VIEW, {"id": job_id}),
    "plain SQL": lambda session, job_id: session.execute(BY_HAND, {"id": job_id}),
}


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Return whether a worker sleeps; it polls again only when it is woken."""
    monkeypatch.setattr(idleness, "_POLLS", 0.0)
    sleeping: set[Claimer] = set()
    sleep = Claimer._sleep

    async def watched(self: Claimer) -> None:
        sleeping.add(self)
        await sleep(self)
        sleeping.discard(self)

    monkeypatch.setattr(Claimer, "_sleep", watched)
    return lambda: any(not claimer._woken.is_set() for claimer in list(sleeping))


@asynccontextmanager
async def a_worker_asleep(
    engine: Engine, asleep: Callable[[], bool], *, queue: JobQueue[Any] | None = None
) -> AsyncIterator[EventLog]:
    """Run a worker that has polled once, listens, and neither polls nor rescues again."""
    if queue is None:
        queue = JobQueue()

        @queue.handler("test")
        async def nothing() -> None: ...

    worker = Worker(
        queue, engine, options=quick(poll_interval=NEVER, heartbeat_interval=NEVER / 2, heartbeat_timeout=1.1 * NEVER)
    )
    async with working(worker) as log:
        await until(lambda: worker.vitals.is_listening is True, description="it listens")
        await until(asleep, description="it rests")
        yield log


async def soon(log: EventLog, kind: type[Any], job_id: UUID) -> None:
    """Wait for an event of a job."""
    count = 1
    async with asyncio.timeout(SOON):
        while job_id not in {event.job_id for event in await log.until(kind, count)}:
            count += 1


def waiting(engine: Engine, *blockers: UUID, on_failure: Any = "continue") -> UUID:
    """Enqueue a job that waits for chains."""
    with Session(engine) as session, session.begin():
        job = Job("test", blockers=[WaitFor(blocker, on_failure) for blocker in blockers])
        session.add(job)
        job_id: UUID = job.id
    return job_id


@pytest.mark.slow
@pytest.mark.parametrize("last", ["first", "second"])
@pytest.mark.parametrize(
    ("status", "one", "other"),
    [
        (JobStatus.RUNNING, "complete_job", "complete_job"),
        (JobStatus.PENDING, "complete_job", "complete_job"),
        (JobStatus.PENDING, "cancel_chains", "cancel_jobs"),
        (JobStatus.RUNNING, "complete_job", "the view"),
        (JobStatus.PENDING, "plain SQL", "complete_job"),
    ],
)
async def test_two_overlapping_ends_release_a_fan_in_at_the_later_commit(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool], status: JobStatus, one: str, other: str, last: str
) -> None:
    jobs.add_worker("other:1")
    options: dict[str, Any] = {"worker_id": "other:1"} if status is JobStatus.RUNNING else {"due_in": HOUR}
    x, y = jobs.add(status, **options), jobs.add(status, **options)
    j = waiting(engine, x, y)
    async with a_worker_asleep(engine, asleep) as log:
        with Session(engine) as first, Session(engine) as second:
            ENDS[one](first, x)
            ENDS[other](second, y)
            for session in (second, first) if last == "first" else (first, second):
                assert jobs.status(j) is JobStatus.BLOCKED
                session.commit()
            await soon(log, JobStarted, j)


async def test_a_locked_blocked_job_is_unblocked_once_its_lock_is_released(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool]
) -> None:
    """A released lock sends no notification: a worker that met it tries again, less and less often."""
    x = jobs.add(due_in=HOUR)
    j = waiting(engine, x)
    queries: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_arguments: Any) -> None:
        queries.extend(["query"] if "examined" in statement else [])

    async with a_worker_asleep(engine, asleep) as log:
        with Session(engine) as holder, Session(engine) as session:
            holder.execute(text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": j})
            complete_job(session, x)
            session.commit()
            event.listen(Engine, "before_cursor_execute", note)
            try:
                await until(lambda: len(queries) > 2, description="a worker has tried again several times")
            finally:
                event.remove(Engine, "before_cursor_execute", note)
            assert jobs.status(j) is JobStatus.BLOCKED
            holder.commit()
        await soon(log, JobStarted, j)


@pytest.mark.slow
@pytest.mark.parametrize("end", [*ENDS, "delete_chains", "expiry"])
async def test_the_next_job_of_an_ordering_key_starts_however_the_first_one_ends(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool], end: str
) -> None:
    first = jobs.add(ordering_key="k", due_in=-9 if end == "expiry" else HOUR)
    following = jobs.add(ordering_key="k", due_in=-9)
    if end == "expiry":  # of a type without a handler, so that it is not started before
        write(engine, "UPDATE job SET type_name = 'other', expires_at = now() WHERE id = :id", {"id": first})
    ends = ENDS | {
        "delete_chains": lambda session, job_id: delete_chains(session, [job_id]),
        "expiry": lambda session, job_id: session.execute(expiry.expire(Job), {"limit": 9}),
    }
    async with a_worker_asleep(engine, asleep) as log:
        with Session(engine) as session, session.begin():
            ends[end](session, first)
        await soon(log, JobStarted, following)


async def test_wait_chain_notices_a_chain_ended_in_sql(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, asleep: Callable[[], bool]
) -> None:
    for statement in (THROUGH_THE_VIEW, BY_HAND):
        x = jobs.add(due_in=HOUR)
        async with a_worker_asleep(engine, asleep):
            waits = asyncio.create_task(aio.wait_chain(async_engine, x, timeout=NEVER, poll_interval=NEVER))
            await until(lambda: jobs.get(x)["has_waiters"], description="it is awaited")  # noqa: B023
            write(engine, statement, {"id": x})
            with pytest.raises(ChainFailedError):
                await asyncio.wait_for(waits, SOON)


async def test_jobs_released_by_a_stopping_worker_start_at_once_on_another(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool]
) -> None:
    """The next job of the key of one that it finishes, and one that it releases."""
    go = asyncio.Event()
    stopping = JobQueue[Any]()

    @stopping.handler("test")
    async def waits() -> None:
        await go.wait()

    @stopping.handler("stuck")
    async def never_ends() -> None:
        await asyncio.Event().wait()

    jobs.add(ordering_key="k", due_in=-9)
    stuck = jobs.add(type_name="stuck")
    taking_over = JobQueue[Any]()

    async def nothing() -> None: ...

    for name in ("test", "stuck"):
        taking_over.handler(name)(nothing)

    leaving = Worker(stopping, engine, options=quick(shutdown_timeout=timedelta(milliseconds=200)))
    async with working(leaving) as log:
        await log.until(JobStarted, 2)
        following = jobs.add(ordering_key="k", due_in=-9)
        async with a_worker_asleep(engine, asleep, queue=taking_over) as other_worker:
            leaving.stop()
            go.set()
            await soon(other_worker, JobStarted, following)
            await soon(other_worker, JobStarted, stuck)


async def test_rescued_jobs_are_started_by_a_worker_that_serves_their_queue(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool]
) -> None:
    """The worker that rescues it serves another queue; it is due after a backoff of less than a second."""
    queue = JobQueue[Any]()

    @queue.handler("test")
    async def nothing() -> None: ...

    async with a_worker_asleep(engine, asleep) as log:
        jobs.add_worker("dead:1", silent_for=HOUR)
        lost = jobs.add(JobStatus.RUNNING, worker_id="dead:1")
        async with working(Worker(queue, engine, options=quick(queues=["elsewhere"]))) as other_worker:
            await soon(other_worker, JobRescued, lost)
            await soon(log, JobStarted, lost)


async def test_a_job_blocked_by_a_failed_chain_with_on_failure_fail_dies_at_once(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool]
) -> None:
    x = jobs.add(due_in=HOUR)
    call(engine, cancel_jobs, [x])
    async with a_worker_asleep(engine, asleep) as log:
        j = waiting(engine, x, on_failure="fail")
        await soon(log, JobDied, j)
        with Session(engine) as session, session.begin():  # dead again, for what it waits for has failed
            assert redrive_dead_letters(session).ids == [j]
        await log.until(JobDied, 2)


async def test_a_job_that_is_due_because_the_clock_was_set_is_started_after_a_tick(
    engine: Engine, jobs: Jobs, asleep: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written, so neither a notification nor a catch-up finds it."""
    for name in ("FULL_SCAN_EVERY", "FULL_SCAN_IDLE"):
        monkeypatch.setattr(arrivals, name, 1e9)
    send, ahead = Heartbeat._send, [timedelta(0)]

    def later(self: Heartbeat, next_tick_in: float) -> Any:
        asked_at, answer = send(self, next_tick_in)
        return asked_at, answer if answer.now is None else replace(answer, now=answer.now + ahead[0])

    monkeypatch.setattr(Heartbeat, "_send", later)
    queue = JobQueue[Any]()

    @queue.handler("test")
    async def nothing() -> None: ...

    job_id = jobs.add(due_in=HOUR)
    options = quick(poll_interval=NEVER, heartbeat_interval=timedelta(milliseconds=100))
    async with working(Worker(queue, engine, options=options)) as log:
        await until(asleep, description="it rests")
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))  # as if no one had written it
            connection.execute(text("UPDATE job SET scheduled_at = now() - interval '1 second'"))
        ahead[0] = timedelta(hours=1)
        await soon(log, JobStarted, job_id)
