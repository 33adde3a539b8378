"""Handlers of many jobs at once: gathered, called once, and each job ended separately."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Discard, Job, JobQueue, JobStatus, Snooze, cancel_jobs, enqueue_many
from sa_jobqueue.events import AttemptLost, JobCompleted, JobRescheduled
from sa_jobqueue.registry import BatchFailed, BatchItem
from sa_jobqueue.types import AttemptOutcome
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import foreign
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, Start, drain, until

pytestmark = [both_servers, pytest.mark.every_python]

Sessions = sessionmaker[Session]
ROOM: dict[str, Any] = {"concurrency": 50}
LONG = timedelta(seconds=20)


def enqueued(sessions: Sessions, jobs: JobQueue[Job], payloads: Sequence[Any], **options: Any) -> list[Any]:
    return call(sessions, enqueue_many, [jobs.job("index", payload, **options) for payload in payloads])


def ended(sessions: Sessions) -> dict[int, tuple[str, Any]]:
    """Return the status and the output of each job, by its input."""
    with sessions() as session:
        return {job.input: (str(job.status), job.output) for job in session.scalars(select(Job))}


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_jobs_claimed_together_are_handed_over_together(sessions: Sessions, mode: str) -> None:
    jobs, calls = JobQueue(), list[list[int]]()
    decorate = jobs.batch_handler("index", max_size=20, max_wait=timedelta(0))
    if mode == "sync":

        @decorate
        def index(numbers: list[int]) -> list[int]:
            calls.append(numbers)
            return [number * 2 for number in numbers]

    else:

        @decorate
        async def index_async(numbers: list[int]) -> list[int]:
            calls.append(numbers)
            return [number * 2 for number in numbers]

    enqueued(sessions, jobs, range(45))
    await drain(jobs, sessions.kw["bind"], **ROOM)
    assert sorted(map(len, calls)) == [5, 20, 20]
    assert ended(sessions) == {number: ("completed", number * 2) for number in range(45)}
    with sessions() as session:
        assert set(session.scalars(select(Job.attempt))) == {1}


async def test_a_lone_job_waits_at_most_max_wait_for_its_batch(sessions: Sessions, start: Start) -> None:
    jobs, sizes = JobQueue(), list[int]()

    @jobs.batch_handler("index", max_size=20, max_wait=timedelta(milliseconds=50))
    def index(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    async with start(jobs, **ROOM) as log:
        enqueued(sessions, jobs, [1])
        await log.until(JobCompleted)
    assert sizes == [1]


async def test_a_batch_starts_when_no_slot_is_free_for_more_jobs(sessions: Sessions, start: Start) -> None:
    jobs, sizes = JobQueue(), list[int]()

    @jobs.batch_handler("index", max_size=100, max_wait=LONG)
    def index(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    async with start(jobs, concurrency=5) as log:
        enqueued(sessions, jobs, range(10))
        await log.until(JobCompleted, 10)
    assert sizes == [5, 5]


async def test_each_job_of_a_batch_ends_with_its_own_outcome(sessions: Sessions) -> None:
    jobs = JobQueue()

    @jobs.handler("next")
    def following(number: int) -> None: ...

    @jobs.batch_handler("index", max_size=20, max_wait=timedelta(0), max_attempts=1)
    def index(items: list[BatchItem[int]]) -> list[Any]:
        outcomes: list[Any] = ["done", ValueError("no"), Discard("never"), Snooze(LONG), following.continuation(7), {1}]
        return [outcomes[item.payload] for item in items]

    enqueued(sessions, jobs, range(6))
    await drain(jobs, sessions.kw["bind"], **ROOM)
    statuses = ended(sessions)
    assert statuses[0] == ("completed", "done")
    assert [statuses[number][0] for number in range(1, 6)] == ["dead", "dead", "pending", "completed", "dead"]
    assert statuses[7] == ("completed", None)
    with sessions() as session:
        dead_letters = session.execute(select(Job.DeadLetter.reason, Job.DeadLetter.error["message"].astext)).all()
        assert sorted((str(reason), message[:5]) for reason, message in dead_letters)[:2] == [
            ("discarded", "never"),
            ("exhausted", "no"),
        ]


@pytest.mark.slow
async def test_an_error_of_a_batch_handler_fails_all_jobs_or_those_it_names(sessions: Sessions) -> None:
    jobs = JobQueue()

    @jobs.batch_handler("index", max_size=20, max_wait=timedelta(0), max_attempts=1)
    async def index(numbers: list[int]) -> list[int] | None:
        if 10 in numbers:
            raise ConnectionError("the index is down")
        if 20 in numbers:
            return [0]
        raise BatchFailed({numbers.index(3): ValueError("three")})

    for payloads in (range(5), [10, 11], [20, 21]):
        enqueued(sessions, jobs, payloads)
        await drain(jobs, sessions.kw["bind"], **ROOM)
    status_by_number = {number: status for number, (status, _) in ended(sessions).items()}
    assert [status_by_number[number] for number in range(5)] == ["completed", "completed", "completed", "dead", "completed"]
    assert [status_by_number[number] for number in (10, 11, 20, 21)] == ["dead"] * 4
    with sessions() as session:
        errors = set(session.scalars(select(Job.last_error["message"].astext).where(Job.last_error.is_not(None))))
        assert {"three", "the index is down"} < errors
        assert any("an outcome for each of its 2 jobs, got 1" in error for error in errors)


async def test_an_invalid_payload_in_a_batch_kills_only_its_own_job(sessions: Sessions) -> None:
    jobs, calls = JobQueue(), list[list[int]]()

    @jobs.batch_handler("index", max_size=3, max_wait=timedelta(0))
    def index(numbers: list[int]) -> None:
        calls.append(numbers)

    call(sessions, enqueue_many, [foreign("index", payload) for payload in (1, "x", 2)])
    await drain(jobs, sessions.kw["bind"], **ROOM)
    assert calls == [[1, 2]]
    assert ended(sessions) == {1: ("completed", None), 2: ("completed", None), "x": ("dead", None)}


def note(session: Any, number: int) -> Any:
    return session.execute(text("INSERT INTO effect VALUES (:number)"), {"number": number})


@pytest.fixture
def effects(sessions: Sessions) -> None:
    """Make a table for effects."""
    with sessions.begin() as session:
        session.execute(text("CREATE TABLE effect (number integer)"))


def effects_of(sessions: Sessions) -> list[int]:
    with sessions() as session:
        return list(session.scalars(text("SELECT number FROM effect ORDER BY number")))


@pytest.mark.slow
@pytest.mark.usefixtures("effects")
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_effects_and_completions_of_a_batch_are_one_commit(sessions: Sessions, mode: str) -> None:
    jobs, transactions = JobQueue(), set[str]()
    decorate = jobs.batch_handler("index", max_size=20, max_wait=timedelta(0), max_attempts=1)
    xid = text("SELECT pg_current_xact_id()::text")
    if mode == "sync":

        @decorate
        def index(numbers: list[int], session: Session) -> list[Any]:
            transactions.add(session.scalar(xid) or "")
            for number in numbers:
                note(session, number)
            if 99 in numbers:
                raise ValueError("all of it")
            return [ValueError("two") if number == 2 else number for number in numbers]

    else:

        @decorate
        async def index_async(numbers: list[int], session: AsyncSession) -> list[Any]:
            transactions.add(await session.scalar(xid) or "")
            for number in numbers:
                await note(session, number)
            if 99 in numbers:
                raise ValueError("all of it")
            return [ValueError("two") if number == 2 else number for number in numbers]

    ids = enqueued(sessions, jobs, range(4))
    with sessions.begin() as session:  # a continuation among them, which ends its chain
        root = session.get_one(Job, ids[3])
        session.add(Job(type_name="test", id=(waiting := type(ids[0])(int=7)), blockers=[root]))
    await drain(jobs, sessions.kw["bind"], concurrency=10)
    assert effects_of(sessions) == [0, 1, 2, 3]
    with sessions() as session:
        statement = select(Job.changed_xid).where(Job.type_name == "index", Job.status == JobStatus.COMPLETED)
        assert {str(transaction) for transaction in session.scalars(statement)} == transactions
        assert session.get_one(Job, waiting).status is JobStatus.PENDING
    assert ended(sessions)[2][0] == "dead"
    enqueued(sessions, jobs, [98, 99])
    await drain(jobs, sessions.kw["bind"], concurrency=10)
    assert effects_of(sessions) == [0, 1, 2, 3]
    assert ended(sessions)[98][0] == ended(sessions)[99][0] == "dead"


@pytest.mark.usefixtures("effects")
async def test_a_job_lost_from_a_batch_with_a_session_does_not_affect_the_others(sessions: Sessions, start: Start) -> None:
    jobs, calls, release = JobQueue(), list[list[int]](), threading.Event()

    @jobs.batch_handler("index", max_size=3, max_wait=LONG)
    def index(numbers: list[int], session: Session) -> None:
        calls.append(sorted(numbers))
        for number in numbers:
            note(session, number)
        release.wait(PATIENCE)

    async with start(jobs, concurrency=3) as log:
        ids = enqueued(sessions, jobs, [1, 2, 3])
        await until(lambda: calls == [[1, 2, 3]])
        # Without a notification: only the fence detects it.
        with sessions.begin() as session:
            session.execute(
                update(Job)
                .where(Job.id == ids[1])
                .values(status=JobStatus.CANCELLED, completed_at=func.now(), leased_by=None, chain_completed_at=func.now())
            )
        release.set()
        (lost,) = await log.until(AttemptLost)
        assert lost.job_id == ids[1]
        rescheduled = await log.until(JobRescheduled, 2)
        assert {event.outcome for event in rescheduled} == {AttemptOutcome.RELEASED}
        assert effects_of(sessions) == []
        enqueued(sessions, jobs, [4])
        await log.until(JobCompleted, 3)
    assert calls[1:] == [[1, 3, 4]]
    assert effects_of(sessions) == [1, 3, 4]
    assert ended(sessions)[2][0] == "cancelled"


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_timeout_stops_the_batch_and_counts_only_against_its_own_job(
    sessions: Sessions, start: Start, mode: str
) -> None:
    jobs, calls = JobQueue(), list[list[int]]()
    decorate = jobs.batch_handler("index", max_size=3, max_wait=timedelta(0), max_attempts=1)
    if mode == "sync":

        @decorate
        def index(items: list[BatchItem[int]]) -> None:
            calls.append(sorted(item.payload for item in items))
            if len(items) == 3:
                items[0].context.wait_cancelled(LONG)

    else:

        @decorate
        async def index_async(items: list[BatchItem[int]]) -> None:
            calls.append(sorted(item.payload for item in items))
            if len(items) == 3:
                await asyncio.Event().wait()

    with sessions.begin() as session:
        hasty = [
            jobs.job("index", number, timeout=timedelta(milliseconds=200) if number == 2 else None) for number in (1, 2, 3)
        ]
        enqueue_many(session, hasty)
    async with start(jobs, **ROOM | {"cancel_timeout": timedelta(seconds=10)}) as log:
        await log.until(JobCompleted, 2)
    assert calls[0] == [1, 2, 3]
    assert sorted(number for call in calls[1:] for number in call) == [1, 3]
    statuses = ended(sessions)
    assert (statuses[1][0], statuses[2][0], statuses[3][0]) == ("completed", "dead", "completed")
    assert {event.outcome for event in log.of(JobRescheduled)} == {AttemptOutcome.RELEASED}


async def test_a_cancelled_job_is_left_out_while_its_batch_completes(sessions: Sessions, start: Start) -> None:
    jobs, calls, release = JobQueue(), list[list[int]](), asyncio.Event()

    @jobs.batch_handler("index", max_size=3, max_wait=LONG)
    async def index(numbers: list[int]) -> None:
        calls.append(sorted(numbers))
        await release.wait()

    def cancel(job_id: Any) -> None:
        call(sessions, cancel_jobs, [job_id])

    async with start(jobs, **ROOM) as log:
        gathering = enqueued(sessions, jobs, [1, 2])
        await until(lambda: len(log.events) >= 3)
        await asyncio.to_thread(cancel, gathering[0])  # before its batch has begun
        await log.until(AttemptLost)
        running = enqueued(sessions, jobs, [3, 4])
        await until(lambda: calls == [[2, 3, 4]])
        await asyncio.to_thread(cancel, running[0])
        await log.until(AttemptLost, 2)
        release.set()
        await log.until(JobCompleted, 2)
    assert {number: status for number, (status, _) in ended(sessions).items()} == {
        1: "cancelled",
        2: "completed",
        3: "cancelled",
        4: "completed",
    }


async def test_shutdown_releases_an_unfinished_batch(sessions: Sessions, start: Start) -> None:
    jobs, begun = JobQueue(), asyncio.Event()

    @jobs.batch_handler("index", max_size=2, max_wait=LONG)
    async def index(numbers: list[int]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with start(jobs, **ROOM | {"shutdown_timeout": timedelta(0)}):
        enqueued(sessions, jobs, [1, 2, 3])
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
    with sessions() as session:
        rows = session.execute(select(Job.status, Job.attempt, Job.max_attempts)).all()
        assert [(str(status), limit - attempt) for status, attempt, limit in rows] == [("pending", 20)] * 3


async def test_middleware_surrounds_each_job_of_a_batch(sessions: Sessions) -> None:
    jobs, stages = JobQueue(), list[tuple[str, int]]()

    @jobs.middleware
    async def watch(attempt: Any, proceed: Any) -> None:
        stages.append(("in", attempt.job.input))
        await proceed()
        stages.append(("out", attempt.job.input))

    @jobs.batch_handler("index", max_size=2, max_wait=timedelta(0))
    async def index(numbers: list[int]) -> None:
        stages.append(("call", len(numbers)))

    enqueued(sessions, jobs, [1, 2])
    await drain(jobs, sessions.kw["bind"], **ROOM)
    assert [stage for stage, _ in stages] == ["in", "in", "call", "out", "out"]
