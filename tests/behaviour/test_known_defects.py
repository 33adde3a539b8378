"""None of the defects that a queue we learnt from had."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AttemptContext,
    Backoff,
    Blockers,
    Deduplicate,
    Enqueued,
    Job,
    JobQueue,
    JobStatus,
    Worker,
    enqueue,
    enqueue_many,
)
from sa_jobqueue.errors import LostAttemptError
from sa_jobqueue.operations import complete_job, trigger_jobs
from sa_jobqueue.statements import arrivals
from tests.fixtures.chains import Chains
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call
from tests.fixtures.variants import variants
from tests.fixtures.workers import PATIENCE, Start, drain, quick, until
from tests.statements.cases import catch_up_parameters

AT_ONCE = Backoff(base=Backoff().base / 1000, cap=Backoff().base / 1000)


def standing(engine: Engine) -> Counter[tuple[str, str]]:
    """Count jobs by type and status."""
    with engine.connect() as connection:
        rows = connection.execute(select(Job.type_name, Job.status, func.count()).group_by(Job.type_name, Job.status))
        return Counter({(row[0], row[1].value): row[2] for row in rows})


@pytest.mark.slow
@pytest.mark.parametrize(
    "with_session", variants([False, True], default=[True], id=lambda has_session: "session" if has_session else "batch")
)
async def test_hundreds_of_fan_ins_under_load_strand_nothing(engine: Engine, with_session: bool) -> None:
    queue, fan_ins = JobQueue(), 200
    leaf: Any
    first: Any

    if with_session:

        @queue.handler("leaf")
        async def leaf_of_session(number: int) -> int:
            return number

        @queue.handler("first")
        def first_of_session(number: int, session: Session, ctx: AttemptContext) -> Any:
            return ctx.continue_with(leaf_of_session, number)

        leaf, first = leaf_of_session, first_of_session

    else:

        @queue.handler("leaf")
        async def plain_leaf(number: int) -> int:
            return number

        @queue.handler("first")
        async def plain_first(number: int, ctx: AttemptContext) -> Any:
            return ctx.continue_with(plain_leaf, number)

        leaf, first = plain_leaf, plain_first

    @queue.handler("merge")
    async def merge(_: None, parts: Blockers[tuple[int, int]]) -> int:
        # Raises if the job starts too early: the output of a blocker is None then.
        return parts.outputs[0] + parts.outputs[1]

    with Session(engine) as session, session.begin():
        enqueue_many(
            session,
            [merge.job(None, blockers=parts) for parts in _pairs(session, leaf, first, fan_ins)],
        )
    await drain(queue, engine, concurrency=10)
    assert standing(engine) == {
        ("merge", "completed"): fan_ins,
        ("leaf", "completed"): 2 * fan_ins,
        ("first", "completed"): fan_ins,
    }
    with engine.connect() as connection:
        outputs = connection.scalars(select(Job.output).where(Job.type_name == "merge"))
        assert sorted(outputs) == [2 * number for number in range(fan_ins)]
        assert connection.scalar(select(func.count()).where(~Job.Blocker.is_resolved)) == 0
        assert connection.scalar(select(func.count()).where(Job.has_waiters)) == 0


def _pairs(session: Session, leaf: Any, first: Any, count: int) -> list[list[Any]]:
    pairs = [[leaf.job(number), first.job(number)] for number in range(count)]
    for kind in range(2):
        enqueue_many(session, [pair[kind] for pair in pairs])
    return pairs


def test_a_deduplication_key_is_taken_until_its_chain_ends(session: Session, chains: Chains) -> None:
    """Whatever has become of the root job: open is the chain."""
    root, _ = chains.add(JobStatus.COMPLETED, JobStatus.PENDING, deduplication_key="k")
    existing, outcome = enqueue(session, Job("test"), deduplicate=Deduplicate("k"))
    assert (existing.id, outcome) == (root, Enqueued.EXISTING)


async def test_lost_jobs_are_rescued_while_no_slot_is_free(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue, release = JobQueue(), asyncio.Event()

    @queue.handler("waits")
    async def waits(_: None) -> None:
        await release.wait()

    call(engine, enqueue_many, [waits.job(None) for _ in range(50)])
    async with start(queue, concurrency=1):
        await until(lambda: standing(engine)["waits", "running"] == 1, description="the only slot is taken")
        jobs.add_worker("gone:1", silent_for=60)
        lost = [jobs.add(JobStatus.RUNNING, worker_id="gone:1", type_name="waits") for _ in range(5)]
        await until(
            lambda: {jobs.status(job_id) for job_id in lost} == {JobStatus.PENDING}, description="all of them are taken back"
        )
        release.set()


async def test_a_claim_takes_many_jobs_and_is_not_repeated_when_none_are_left(engine: Engine) -> None:
    """No round trip for each job, and none to learn again that there is no other."""
    queue = JobQueue()

    @queue.handler("nothing")
    async def nothing(_: None) -> None: ...

    call(engine, enqueue_many, [nothing.job(None) for _ in range(200)])
    statements: Counter[str] = Counter()
    worker = Worker(queue, engine, options=quick(concurrency=20))

    def count(_connection: Any, _cursor: Any, statement: str, *_arguments: Any) -> None:
        statements["claim" if "lane" in statement and "UPDATE" in statement else "other"] += 1

    event.listen(Engine, "before_cursor_execute", count)
    try:
        await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert standing(engine) == {("nothing", "completed"): 200}
    assert 0 < statements["claim"] <= 200 / 4
    assert statements.total() <= 200 / 2


async def test_a_library_error_raised_in_a_handler_fails_the_attempt(engine: Engine, jobs: Jobs) -> None:
    """It is not mistaken for the loss of the attempt, and the job does not stay behind as running."""
    queue = JobQueue()

    @queue.handler("triggers", max_attempts=2, retry=AT_ONCE)
    def triggers(_: None, session: Session) -> None:
        trigger_jobs(session, [Job.__id_factory__()])

    @queue.handler("ends", max_attempts=2, retry=AT_ONCE)
    def ends(_: None, session: Session, ctx: AttemptContext) -> None:
        complete_job(session, ctx.job.id)
        complete_job(session, ctx.job.id)

    @queue.handler("waits_for_none", max_attempts=2, retry=AT_ONCE)
    async def waits_for_none(_: None, ctx: AttemptContext) -> Any:
        return ctx.continue_with(waits_for_none, None, blockers=[Job.__id_factory__()])

    @queue.handler("passes_on", max_attempts=2, retry=AT_ONCE)
    async def passes_on(_: None) -> None:
        raise LostAttemptError(Job.__id_factory__(), 1)

    @queue.handler("enqueues", max_attempts=2, retry=AT_ONCE)
    def enqueues(_: None, session: Session) -> None:
        session.add(queue.job("counts", "no number"))

    @queue.handler("counts")
    def counts(number: int) -> None: ...

    expected = {
        "triggers": "NotFoundError",
        "ends": "JobEndedError",
        "waits_for_none": "NotFoundError",
        "passes_on": "LostAttemptError",
        "enqueues": "InvalidPayloadError",
    }
    with Session(engine) as session, session.begin():
        session.add_all(queue.job(name, max_attempts=1 if name == "waits_for_none" else None) for name in expected)
    await drain(queue, engine)
    assert standing(engine) == {(name, "dead"): 1 for name in expected}
    errors = {
        dead_letter["type_name"]: dead_letter["error"]["type"].rpartition(".")[2] for dead_letter in jobs.dead_letters()
    }
    assert errors == expected
    assert {dead_letter["reason"] for dead_letter in jobs.dead_letters()} == {"exhausted"}


def test_catching_up_and_finding_the_next_due_job_locks_no_row(engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add()
    ended: dict[str, Any] = {
        "ended_queues": ["default"],
        "ended_fairness_keys": [""],
        "ended_priorities": [0],
        "ended_types": [""],
    }
    with engine.connect() as looking, engine.connect() as other_connection:
        parameters = catch_up_parameters("3", **ended, read_to=datetime(2020, 1, 1, tzinfo=UTC))
        assert (
            len(looking.execute(arrivals.catch_up(Job), parameters).all()) == 2
        )  # what came since, and the next of the lane
        locked_rows = select(Job.id).with_for_update(skip_locked=True)
        assert other_connection.scalars(locked_rows).all() == [job_id]
