"""A chain continues in the commit that completes its last job, or not at all; in every kind of handler."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import AttemptContext, Continuation, Discard, Job, JobMixin, JobQueue, JobStatus, errors, get_chain, get_job
from sa_jobqueue.events import AttemptLost, JobCompleted, JobStarted
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import cancel_chains, complete_job, lock_chain, redrive_dead_letters
from tests.fixtures.chains import chain_of
from tests.fixtures.database import both_servers
from tests.fixtures.handlers import FLAVOURS, HOUR, handle
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.variants import variants
from tests.fixtures.workers import PATIENCE, Start, drain

pytestmark = both_servers

with_session = pytest.mark.parametrize("flavour", FLAVOURS[2:])
any_flavour = pytest.mark.parametrize("flavour", FLAVOURS)

TAKEN = uuid7()


def line(engine: Engine, chain_id: Any, model: type[Any] = Job) -> list[tuple[int, str, Any, JobStatus]]:
    """Return index, type, output and status of a chain's jobs."""
    with Session(engine) as session:
        jobs = get_chain(session, chain_id, model=model).jobs
        return [(job.chain_index, job.type_name, job.output, job.status) for job in jobs]


def count(engine: Engine, type_name: str) -> int:
    with Session(engine) as session:
        return len(session.scalars(select(Job.id).where(Job.type_name == type_name)).all())


DONE, DEAD, PENDING, CANCELLED = JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.PENDING, JobStatus.CANCELLED


@pytest.mark.slow
@any_flavour
async def test_a_chain_runs_job_by_job_and_ends_with_the_output_of_its_last_job(engine: Engine, flavour: str) -> None:
    queue = JobQueue()
    third = handle(queue, flavour, "third", lambda n, ctx: {"n": n})
    second = handle(queue, flavour, "second", lambda n, ctx: ctx.continue_with(third, n * 10))
    first = handle(queue, flavour, "first", lambda n, ctx: ctx.continue_with(second, n + 1))
    (chain_id,) = enqueue(engine, first.job(1))
    log = await drain(queue, engine)
    assert line(engine, chain_id) == [(0, "first", None, DONE), (1, "second", None, DONE), (2, "third", {"n": 20}, DONE)]
    chain = chain_of(engine, chain_id)
    assert (chain.type_name, chain.status, chain.output, chain.length) == ("first", DONE, {"n": 20}, 3)
    assert (chain.last_type_name, chain.completed_at is not None) == ("third", True)
    assert len(log.of(JobCompleted)) == 3
    assert count(engine, "effect") == (3 if "session" in flavour else 0)
    with Session(engine) as session:
        assert {job.chain_type_name for job in session.scalars(select(Job).where(Job.type_name != "effect"))} == {"first"}


async def test_a_continuation_has_its_own_options_and_schedule(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    second = handle(queue, "sync", "second", lambda n, ctx: n, max_attempts=2)
    own_id = uuid7()
    options: dict[str, Any] = {"delay": HOUR, "queue": "later", "priority": 3, "id": own_id}
    first = handle(queue, "sync", "first", lambda n, ctx: ctx.continue_with(second, n, **options))
    (chain_id,) = enqueue(engine, first.job(1, deduplication_key="k"))
    await drain(queue, engine)
    row, root = jobs.get(own_id), jobs.get(chain_id)
    assert (row["queue"], row["priority"], row["max_attempts"], row["status"]) == ("later", 3, 2, PENDING)
    assert row["scheduled_at"] - root["completed_at"] == HOUR
    assert (row["chain_id"], row["chain_index"], row["deduplication_key"]) == (chain_id, 1, None)
    assert (root["status"], root["chain_completed_at"], root["output"]) == (DONE, None, None)
    with pytest.raises(Exception, match="uq_job_deduplication"):  # the chain is open, so its key is taken
        enqueue(engine, first.job(1, deduplication_key="k"))


@with_session
async def test_effects_completion_and_continuation_are_one_commit(engine: Engine, flavour: str) -> None:
    queue = JobQueue()
    second = handle(queue, flavour, "second", lambda n, ctx: n)
    first = handle(queue, flavour, "first", lambda n, ctx: ctx.continue_with(second, n, delay=HOUR))
    enqueue(engine, first.job(1))
    await drain(queue, engine)
    with engine.connect() as connection:
        transactions = connection.execute(text("SELECT DISTINCT xmin::text FROM job")).all()
        types = set(connection.execute(text("SELECT type_name FROM job")).scalars())
    assert (len(transactions), types) == (1, {"first", "second", "effect"})


@pytest.mark.slow
@any_flavour
async def test_a_failure_after_continue_with_writes_no_continuation(engine: Engine, flavour: str) -> None:
    queue = JobQueue()
    second = handle(queue, flavour, "second", lambda n, ctx: n)

    def fail(n: int, ctx: AttemptContext) -> Any:
        ctx.continue_with(second, n)
        raise ValueError("after all")

    first = handle(queue, flavour, "first", fail, max_attempts=1)
    (chain_id,) = enqueue(engine, first.job(1))
    await drain(queue, engine)
    assert line(engine, chain_id) == [(0, "first", None, DEAD)]
    assert (count(engine, "second"), count(engine, "effect")) == (0, 0)


def taken_id(second: Any, chain_id: Any) -> Continuation[Any]:
    continuation: Continuation[Any] = second.continuation(1, id=TAKEN)
    return continuation


def missing_blocker(second: Any, chain_id: Any) -> Continuation[Any]:
    continuation: Continuation[Any] = second.continuation(1, blockers=[uuid7()])
    return continuation


def own_chain(second: Any, chain_id: Any) -> Continuation[Any]:
    continuation: Continuation[Any] = second.continuation(1, blockers=[chain_id])
    return continuation


def deduplicated(second: Any, chain_id: Any) -> Continuation[Any]:
    continuation: Continuation[Any] = second.continuation(1, deduplication_key="k")
    return continuation


@pytest.mark.slow
@pytest.mark.parametrize("flavour", variants(FLAVOURS, default=["async", "sync session"]))
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (taken_id, "duplicate key value violates unique constraint"),
        (missing_blocker, "blockers[0]: no such chain"),
        (own_chain, "blockers[0]: is the job's own chain"),
        (deduplicated, "deduplication_key: cannot be set for a continuation"),
    ],
)
async def test_a_continuation_that_cannot_be_written_fails_only_its_own_attempt(
    engine: Engine, jobs: Jobs, flavour: str, wrong: Any, message: str
) -> None:
    queue = JobQueue()
    second = handle(queue, flavour, "second", lambda n, ctx: n)
    bad = handle(queue, flavour, "bad", lambda n, ctx: wrong(second, ctx.job.id), max_attempts=1)
    good = handle(queue, flavour, "good", lambda n, ctx: ctx.continue_with(second, n))
    first, *others_jobs, _ = enqueue(engine, bad.job(1), good.job(1), good.job(2), Job("other", id=TAKEN, delay=HOUR))
    await drain(queue, engine)
    assert line(engine, first) == [(0, "bad", None, DEAD)]
    assert [chain_of(engine, chain_id).output for chain_id in others_jobs] == [1, 2]
    assert message in jobs.dead_letters(first)[0]["error"]["message"]
    assert count(engine, "effect") == (4 if "session" in flavour else 0)


async def test_a_continuation_can_be_used_only_once(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    second = handle(queue, "sync", "second", lambda n, ctx: n)
    continuation = second.continuation(1)
    first = handle(queue, "sync", "first", lambda n, ctx: continuation, max_attempts=1)
    enqueue(engine, first.job(1), first.job(2))
    await drain(queue, engine, concurrency=1)
    assert count(engine, "second") == 1
    assert "was used already" in jobs.dead_letters()[0]["error"]["message"]


@pytest.mark.slow
@any_flavour
async def test_a_death_ends_the_chain_and_a_redrive_resumes_it(engine: Engine, flavour: str) -> None:
    queue = JobQueue()
    works: list[bool] = []

    def fail(n: int, ctx: AttemptContext) -> Any:
        if not works:
            raise Discard("not yet")
        return ctx.continue_with(third, n)

    third = handle(queue, flavour, "third", lambda n, ctx: n)
    second = handle(queue, flavour, "second", fail)
    first = handle(queue, flavour, "first", lambda n, ctx: ctx.continue_with(second, n))
    (chain_id,) = enqueue(engine, first.job(7))
    await drain(queue, engine)
    chain = chain_of(engine, chain_id)
    assert chain.error is not None
    assert (chain.status, chain.error["message"], chain.completed_at is not None) == (DEAD, "not yet", True)
    works.append(True)
    call(engine, redrive_dead_letters)
    chain = chain_of(engine, chain_id)
    assert (chain.status, chain.completed_at) == (PENDING, None)
    await drain(queue, engine)
    assert (chain_of(engine, chain_id).output, chain_of(engine, chain_id).length) == (7, 3)


async def test_cancelling_a_chain_stops_its_running_job_from_continuing_it(engine: Engine) -> None:
    queue = JobQueue()

    def cancel(n: int, ctx: AttemptContext) -> Any:
        call(engine, cancel_chains, [ctx.job.chain_id])
        return ctx.continue_with(second, n)

    second = handle(queue, "sync session", "second", cancel)
    first = handle(queue, "sync session", "first", lambda n, ctx: ctx.continue_with(second, n))
    (chain_id,) = enqueue(engine, first.job(1))
    log = await drain(queue, engine)
    assert [status for *_, status in line(engine, chain_id)] == [DONE, CANCELLED]
    assert (chain_of(engine, chain_id).status, count(engine, "effect")) == (CANCELLED, 1)
    assert len(log.of(AttemptLost)) == 1


def decide(engine: Engine, job_id: Any, result: Any = None, model: Any = Job) -> None:
    with Session(engine) as session, session.begin():
        job = complete_job(session, job_id, result, model=model)
        assert (job.id, job.status, job.completed_by) == (job_id, DONE, None)


async def test_completing_a_pending_job_without_a_worker_continues_or_ends_its_chain(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    second = handle(queue, "sync", "second", lambda n, ctx: n)
    approval = handle(queue, "sync", "approval", lambda n, ctx: "timed out")
    continuing, ending = enqueue(engine, approval.job(1, delay=HOUR), approval.job(1, delay=HOUR))
    decide(engine, continuing, second.continuation("approved"))
    decide(engine, ending, {"approved": True})
    assert line(engine, ending) == [(0, "approval", {"approved": True}, DONE)]
    assert chain_of(engine, ending).completed_at == jobs.get(ending)["completed_at"]
    log = await drain(queue, engine)
    assert chain_of(engine, continuing).output == "approved"
    assert [event.type_name for event in log.of(JobStarted)] == ["second"]


@pytest.mark.slow
@any_flavour
async def test_a_handler_whose_job_was_completed_elsewhere_is_stopped_and_rolled_back(
    engine: Engine, jobs: Jobs, start: Start, flavour: str
) -> None:
    queue = JobQueue()
    decided: list[Any] = []

    def outvoted(n: int, ctx: AttemptContext) -> Any:
        decide(engine, ctx.job.id, "decided elsewhere")
        decided.append(ctx)
        if "async" not in flavour:  # a task is cancelled at its next await
            assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        return "mine"

    slow = handle(queue, flavour, "slow", outvoted)
    async with start(queue) as log:
        (job_id,) = enqueue(engine, slow.job(1))
        await log.until(AttemptLost)
    assert line(engine, job_id) == [(0, "slow", "decided elsewhere", DONE)]
    assert (count(engine, "effect"), len(decided)) == (0, 1)
    assert [row["outcome"] for row in jobs.attempts(job_id)] == ["superseded"]


def test_an_invalid_completion_raises_the_reason_and_writes_nothing(engine: Engine, jobs: Jobs) -> None:
    completed_id, open_one, missing_id = jobs.add(DONE), jobs.add(PENDING), uuid7()
    queue = JobQueue()
    second = handle(queue, "sync", "second", lambda n, ctx: n)
    used = second.continuation(1)
    decide(engine, jobs.add(PENDING), used)
    refusals: list[tuple[Any, Any, type[Exception], str]] = [
        (missing_id, None, errors.NotFoundError, f"no such job: {missing_id}; nothing was changed"),
        (completed_id, None, errors.JobEndedError, "has already ended: it is completed"),
        (open_one, object(), errors.InvalidPayloadError, "^result: "),
        (open_one, second.continuation(1, blockers=[uuid7()]), errors.NotFoundError, r"blockers\[0\]"),
        (open_one, second.continuation(1, blockers=[open_one]), errors.InvalidJobError, "own chain"),
        (open_one, Continuation(second.job(1, deduplication_key="a")), errors.InvalidJobError, "^deduplication_key: "),
        (open_one, used, errors.InvalidJobError, "^continuation: was used already"),
        (open_one, second.continuation(1, id=completed_id), errors.ConflictError, "another row holds that key"),
    ]
    count = jobs.count()
    with Session(engine) as session, session.begin():
        for job_id, result, error, message in refusals:
            with pytest.raises(error, match=message):
                complete_job(session, job_id, result)
        with pytest.raises(errors.NotFoundError):
            lock_chain(session, uuid7())
    assert (jobs.status(open_one), jobs.count()) == (PENDING, count)


def test_lock_chain_keeps_other_transactions_from_completing_the_chain(
    engine: Engine, two_sessions: tuple[Session, Session]
) -> None:
    ours, theirs = two_sessions
    (chain_id,) = enqueue(engine, Job("test"))
    assert lock_chain(ours, chain_id).id == chain_id
    with pytest.raises(OperationalError, match="lock timeout"):
        complete_job(theirs, chain_id)
    theirs.rollback()
    complete_job(ours, chain_id, 1)
    ours.commit()
    with pytest.raises(errors.JobEndedError):
        complete_job(theirs, chain_id)


def test_lock_chain_refuses_the_id_of_a_continuation(engine: Engine) -> None:
    (chain_id,) = enqueue(engine, Job("test"))
    following = JobQueue().handler("second")(lambda n: n).continuation(1)
    decide(engine, chain_id, following)
    with Session(engine) as session:
        (_, second) = get_chain(session, chain_id).jobs
        with pytest.raises(errors.NotFoundError):
            lock_chain(session, second.id)


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_schema="chained", queue_prefix="t_"):
    """A queue with text ids, a schema and a prefix."""


@pytest.mark.slow
@pytest.mark.parametrize("flavour", variants(FLAVOURS, default=["sync session"]))
async def test_chains_work_with_text_ids_in_another_schema(engine: Engine, flavour: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS chained"))
        Base.metadata.create_all(connection)
    queue = JobQueue(TextJob)
    try:
        last = handle(queue, flavour, "last", lambda n, ctx: n)
        merge = handle(queue, flavour, "merge", lambda n, ctx: ctx.continue_with(last, n + 1))
        options: dict[str, Any] = {"blockers": [last.job(5, id="new"), "other"], "id": "second"}
        first = handle(queue, flavour, "first", lambda n, ctx: ctx.continue_with(merge, n, **options))
        enqueue(engine, last.job(1, id="other", delay=HOUR), first.job(1, id="chain"))
        await drain(queue, engine)
        assert line(engine, "chain", TextJob)[-1] == (1, "merge", None, JobStatus.BLOCKED)
        decide(engine, "other", 2, TextJob)
        await drain(queue, engine)
        assert [index for index, *_ in line(engine, "chain", TextJob)] == [0, 1, 2]
        assert chain_of(engine, "chain", TextJob).output == 2
        with Session(engine) as session:
            blocker_rows = get_job(session, "second", model=TextJob).blocked_by
            assert [(blocker.blocked_by_chain_id, blocker.is_resolved) for blocker in blocker_rows] == [
                ("new", True),
                ("other", True),
            ]
    finally:
        write(engine, "DROP SCHEMA chained CASCADE")
