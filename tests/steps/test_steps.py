"""Steps run once for a job, whatever happens to its attempts; a transaction that is a step has its effects exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, Discard, Job, JobQueue, JobStatus, Snooze, cancel_jobs, operations
from sa_jobqueue.errors import DuplicateStepError, InvalidOptionError, LostAttemptError
from sa_jobqueue.events import StepCompleted
from sa_jobqueue.operations.steps import record_step, record_transaction
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.registry import BatchItem
from sa_jobqueue.testing import drain as drain_test
from sa_jobqueue.types import StepKind
from tests.fixtures.attempts import attempt_context
from tests.fixtures.commands import Run
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, rows, scalars, write
from tests.fixtures.workers import ManualWorker, drain

pytestmark = pytest.mark.every_python

MakeWorker = Callable[..., ManualWorker]
KINDS = ["sync", "async"]
WRITE = text("INSERT INTO effect VALUES (:job)")


@dataclass
class Draft:
    text: str
    tokens: int


@pytest.fixture
def effects(engine: Engine) -> Iterator[Callable[[], list[str]]]:
    write(engine, "CREATE TABLE effect (job text)")

    def read() -> list[str]:
        return scalars(engine, "SELECT job FROM effect ORDER BY 1")

    yield read
    write(engine, "DROP TABLE effect")


def steps_of(engine: Engine, job_id: Any) -> list[tuple[str, str, str, int, Any]]:
    step = Job.Step
    with Session(engine) as session:
        rows = session.execute(
            select(step.name, step.key, step.kind, step.attempt, step.output)
            .where(step.job_id == job_id)
            .order_by(step.completed_at)
        )
        return [tuple(row) for row in rows]


def crashing_queue(calls: list[str], results: list[Any], crashes: int = 1) -> JobQueue[Any]:
    """Return handlers that fail after their step and transaction so many times."""
    queue: JobQueue[Any] = JobQueue()

    def model(prompt: str) -> Draft:
        calls.append(prompt)
        return Draft(prompt.upper(), 3)

    async def model_async(prompt: str) -> Draft:
        await asyncio.sleep(0)
        return model(prompt)

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> str:
        draft = ctx.step("draft", model, payload)
        results.append(draft)
        with ctx.transaction("charge") as session:
            if session is not None:
                session.execute(WRITE, {"job": payload})
        if ctx.attempt <= crashes:
            raise RuntimeError("crash")
        return draft.text

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        draft = await ctx.step("draft", model_async, payload)
        results.append(draft)
        async with ctx.transaction("charge") as session:
            if session is not None:
                await session.execute(WRITE, {"job": payload})
        if ctx.attempt <= crashes:
            raise RuntimeError("crash")
        return draft.text

    return queue


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async_engine", [False, True])
async def test_later_attempts_get_the_recorded_result_and_effects_happen_once(
    engine: Engine, jobs: Jobs, effects: Callable[[], list[str]], kind: str, is_async_engine: bool
) -> None:
    calls: list[str] = []
    results: list[Any] = []
    queue = crashing_queue(calls, results, crashes=3)
    (job_id,) = enqueue(engine, queue.job(kind, "hello"))
    session_engine = create_async_engine(engine.url) if is_async_engine else engine
    await drain(queue, session_engine)
    assert jobs.get(job_id)["output"] == "HELLO"
    assert calls == ["hello"]
    assert results == [Draft("HELLO", 3)] * 4
    assert effects() == ["hello"]
    assert steps_of(engine, job_id) == [
        ("draft", "", "step", 1, {"text": "HELLO", "tokens": 3}),
        ("charge", "", "transaction", 1, None),
    ]
    if is_async_engine:
        await session_engine.dispose()  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
async def test_drain_in_a_session_keeps_steps_of_failed_attempts(
    engine: Engine, effects: Callable[[], list[str]], kind: str
) -> None:
    calls: list[str] = []
    results: list[Any] = []
    queue = crashing_queue(calls, results)
    async_engine = create_async_engine(engine.url)
    async with AsyncSession(async_engine) as session:
        job = queue.job(kind, "hello")
        session.add(job)
        drained = await drain_test(queue, session, raise_errors=False, scheduled=True)
        assert (drained.completed, drained.retried) == (1, 1)
        assert calls == ["hello"]
        assert results == [Draft("HELLO", 3)] * 2
        assert list(await session.scalars(text("SELECT job FROM effect"))) == ["hello"]
        await session.rollback()
    await async_engine.dispose()
    assert effects() == []
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Job.Step)) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_that_raises_writes_neither_effects_nor_checkpoint(
    engine: Engine, jobs: Jobs, effects: Callable[[], list[str]], kind: str
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> None:
        with ctx.transaction("charge") as session:
            assert session is not None
            session.execute(WRITE, {"job": payload})
            if ctx.attempt == 1:
                raise RuntimeError("crash")

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        async with ctx.transaction("charge") as session:
            assert session is not None
            await session.execute(WRITE, {"job": payload})
            if ctx.attempt == 1:
                raise RuntimeError("crash")

    (job_id,) = enqueue(engine, queue.job(kind, "hello"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    assert effects() == ["hello"]
    assert steps_of(engine, job_id) == [("charge", "", "transaction", 2, None)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_cannot_be_committed_by_the_handler(
    engine: Engine, jobs: Jobs, effects: Callable[[], list[str]], kind: str
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> None:
        with ctx.transaction("charge") as session:
            assert session is not None
            session.execute(WRITE, {"job": payload})
            session.commit()

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        async with ctx.transaction("charge") as session:
            assert session is not None
            await session.execute(WRITE, {"job": payload})
            await session.execute(text("COMMIT"))

    (job_id,) = enqueue(engine, queue.job(kind, "hello"))
    await drain(queue, engine)
    assert jobs.get(job_id)["last_error"]["type"] == "sa_jobqueue.errors.HandlerCommitError"
    assert effects() == []
    assert steps_of(engine, job_id) == []


async def test_names_are_unique_in_a_job_and_keys_tell_rounds_apart(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    raised: list[str] = []

    async def double(number: int) -> int:
        return number * 2

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: str, ctx: AttemptContext) -> int:
        numbers = await asyncio.gather(*(ctx.step("row", double, number, key=number) for number in range(3)))
        await ctx.step("other", double, 1)
        forms: list[dict[str, Any]] = [{}, {"key": 2}]
        for form in forms:
            with pytest.raises(DuplicateStepError) as caught:
                await ctx.step("row" if form else "other", double, 1, **form)
            raised.append(str(caught.value))
        return sum(numbers)

    (job_id,) = enqueue(engine, queue.job("async", "hello"))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == 6, jobs.get(job_id)["last_error"]
    assert sorted(row[:2] for row in steps_of(engine, job_id)) == [("other", ""), *(("row", str(n)) for n in range(3))]
    assert raised == [
        "step 'other' was used already in this attempt: names are unique in a job; in a loop, pass key=",
        "step 'row' with key '2' was used already in this attempt: names are unique in a job; give each round its own key",
    ]


def lose(engine: Engine, job_id: Any) -> None:
    """Take a running job from its worker, as a rescue does."""
    with engine.begin() as connection:
        table = Job.__table__
        values = {"status": JobStatus.PENDING, "leased_by": None, "scheduled_at": func.now() + timedelta(hours=1)}
        connection.execute(update(table).where(table.c.id == job_id).values(values))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step_call", ["step", "transaction"])
async def test_a_worker_that_lost_its_job_can_write_no_step(
    engine: Engine, jobs: Jobs, effects: Callable[[], list[str]], kind: str, step_call: str
) -> None:
    queue: JobQueue[Any] = JobQueue()
    raised: list[BaseException] = []

    @queue.handler("sync")
    def sync(payload: str, ctx: AttemptContext) -> None:
        try:
            if step_call == "step":
                ctx.step("lost", lambda: lose(engine, ctx.job.id))
            else:
                with ctx.transaction("lost") as session:
                    assert session is not None
                    session.execute(WRITE, {"job": payload})
                    lose(engine, ctx.job.id)
        except LostAttemptError as error:
            raised.append(error)
            raise

    @queue.handler("async")
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        try:
            if step_call == "step":
                await ctx.step("lost", asyncio.to_thread, lose, engine, ctx.job.id, output=type(None))
            else:
                async with ctx.transaction("lost") as session:
                    assert session is not None
                    await session.execute(WRITE, {"job": payload})
                    await asyncio.to_thread(lose, engine, ctx.job.id)
        except LostAttemptError as error:
            raised.append(error)
            raise

    (job_id,) = enqueue(engine, queue.job(kind, "hello"))
    await drain(queue, engine)
    assert len(raised) == 1
    assert jobs.status(job_id) is JobStatus.PENDING
    assert steps_of(engine, job_id) == []
    assert effects() == []


def test_a_checkpoint_holds_the_job_until_its_commit(engine: Engine, jobs: Jobs, manual_worker: MakeWorker) -> None:
    """A rescue or cancel that comes between the fence and the commit waits, and changes the committed row."""
    jobs.add_worker("one:1")
    job_id = jobs.add()
    (job,) = manual_worker("one:1").claim()
    cancelled = threading.Event()

    def cancel() -> None:
        call(engine, cancel_jobs, [job_id])
        cancelled.set()

    with Session(engine) as session:
        checkpoint: dict[str, Any] = {"place": ("charge", ""), "took": timedelta(0), "session_name": None}
        record_transaction(session, Job, cast("Any", job), "one:1", **checkpoint)
        thread = threading.Thread(target=cancel)
        thread.start()
        until_locks_are_waited_for(engine)
        assert not cancelled.is_set()
        session.commit()
    thread.join()
    assert jobs.status(job_id) is JobStatus.CANCELLED
    assert [row[0] for row in steps_of(engine, job_id)] == ["charge"]


def test_a_checkpoint_after_a_cancel_is_refused(engine: Engine, jobs: Jobs, manual_worker: MakeWorker) -> None:
    """The cancel is not committed yet when the fence looks: the checkpoint waits for it, then writes nothing."""
    jobs.add_worker("one:1")
    job_id = jobs.add()
    (job,) = manual_worker("one:1").claim()
    raised: list[BaseException] = []

    def checkpoint() -> None:
        with Session(engine) as session:
            try:
                place = {"place": ("charge", ""), "took": timedelta(0), "session_name": None}
                record_transaction(session, Job, cast("Any", job), "one:1", **cast("Any", place))
            except LostAttemptError as error:
                raised.append(error)

    with Session(engine) as other_session:
        cancel_jobs(other_session, [job_id])
        thread = threading.Thread(target=checkpoint)
        thread.start()
        until_locks_are_waited_for(engine)
        other_session.commit()
    thread.join()
    assert len(raised) == 1
    assert steps_of(engine, job_id) == []


async def test_a_result_that_no_longer_matches_its_type_is_an_error_that_names_the_step(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()
    raised: list[str] = []

    @queue.handler("sync", retry=immediately, max_attempts=2)
    def sync(payload: str, ctx: AttemptContext) -> None:
        try:
            ctx.step("draft", lambda: "a text", output=str if ctx.attempt == 1 else Draft)
        except Exception as error:
            raised.append(str(error))
        raise RuntimeError

    enqueue(engine, queue.job("sync", "hello"))
    await drain(queue, engine)
    (message,) = raised
    assert message.startswith("step 'draft' has a recorded result that is no Draft: output: ")
    assert message.endswith("convert the record with upcast_step, or give the step a new name to run it again")


async def test_recorded_results_of_an_older_type_are_converted(engine: Engine, jobs: Jobs) -> None:
    queue, results = JobQueue(), list[Any]()

    async def ask() -> str:
        return "hello"

    @queue.handler("ask", max_attempts=2, retry=immediately)
    async def handler(ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            await ctx.step("draft", ask)
            raise ValueError("stop")
        results.append(await ctx.step("draft", ask, output=Draft))

    handler.upcast_step("draft")(lambda stored: {"text": stored, "tokens": 5})
    with pytest.raises(InvalidOptionError, match="already has an upcaster of step 'draft'"):
        handler.upcast_step("draft")(str)
    (job_id,) = enqueue(engine, handler.job())
    await drain(queue, engine)
    assert (results[0], jobs.status(job_id)) == (Draft("hello", 5), JobStatus.COMPLETED)


async def test_an_upcaster_that_fails_is_an_error_that_names_the_step(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()

    async def ask() -> Any:
        return "hello"

    @queue.handler("ask", max_attempts=2, retry=immediately)
    async def handler(ctx: AttemptContext) -> None:
        await ctx.step("draft", ask, output=Draft if ctx.attempt == 2 else str)
        raise ValueError("stop")

    handler.upcast_step("draft")(lambda stored: stored["text"])
    (job_id,) = enqueue(engine, handler.job())
    await drain(queue, engine)
    message = jobs.get(job_id)["last_error"]["message"]
    assert message.startswith("step 'draft' has a recorded result from which its upcaster makes no Draft: TypeError(")


async def test_a_renamed_step_is_named_in_the_log_before_it_runs_again(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    queue, calls = JobQueue(), list[str]()

    async def pay() -> None:
        calls.append("paid" if "is new" in caplog.text else "paid without a warning")

    @queue.handler("order", max_attempts=3, retry=immediately)
    async def handler(ctx: AttemptContext) -> None:
        await asyncio.gather(*(ctx.step("part", pay, key=n) for n in range(3)))
        await ctx.step("pay" if ctx.attempt == 1 else "payment", pay)
        if ctx.attempt < 3:
            raise ValueError("stop")

    enqueue(engine, handler.job())
    await drain(queue, engine)
    assert calls == ["paid without a warning"] * 4 + ["paid"]
    warnings = [record.getMessage() for record in caplog.records if "is new" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].endswith(
        "step 'payment' is new, and an earlier attempt recorded steps that were not called: 'pay'. "
        "If one was renamed, it runs again: give it its recorded name"
    )


async def test_a_step_is_refused_before_its_function_is_called(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    called: list[str] = []
    raised: list[str] = []

    def note() -> Any:
        called.append("called")

    def unstorable() -> threading.Lock:
        called.append("called")
        raise AssertionError

    async def asynchronous() -> None:
        called.append("called")

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> None:
        wrong: list[tuple[Any, ...]] = [("", note), ("a" * 101, note), ("x", None), ("x", asynchronous), ("x", unstorable)]
        for name, fn in wrong:
            with pytest.raises(InvalidOptionError) as caught:
                ctx.step(name, fn)
            raised.append(caught.value.option)
        with pytest.raises(InvalidOptionError) as caught:
            ctx.step("x", note, key="")
        raised.append(caught.value.option)

    (job_id,) = enqueue(engine, queue.job("sync", "hello"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED, jobs.get(job_id)["last_error"]
    assert raised == ["name", "name", "fn", "fn", "output", "key"]
    assert called == []


class Reversing:
    name = "reversing"

    def encode(self, data: bytes, /) -> Any:
        return data.decode()[::-1]

    def decode(self, stored: Any, /) -> bytes:
        return bytes(stored[::-1].encode())


async def test_results_are_stored_by_the_codec_of_the_job_type(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()
    results: list[str] = []

    @queue.handler("sync", codec=Reversing(), retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> None:
        results.append(ctx.step("secret", lambda: "hello"))
        if ctx.attempt == 1:
            raise RuntimeError

    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    assert results == ["hello", "hello"]
    (row,) = steps_of(engine, job_id)
    assert row[4] == {"sa_jobqueue.codec": "reversing", "data": '"olleh"'}


@pytest.mark.parametrize("by", ["delete_chains", "prune"])
async def test_steps_are_deleted_with_their_job(engine: Engine, by: str) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync")
    def sync(payload: str, ctx: AttemptContext) -> None:
        ctx.step("one", lambda: 1)

    first, second = enqueue(engine, queue.job("sync", "x"), queue.job("sync", "y"))
    await drain(queue, engine)
    with Session(engine) as session, session.begin():
        if by == "delete_chains":
            operations.delete_chains(session, [first])
        else:
            session.execute(update(Job).where(Job.id == first).values(chain_completed_at=func.now() - timedelta(days=9)))
            session.execute(update(Job).where(Job.id == first).values(completed_at=func.now() - timedelta(days=9)))
            operations.prune(session, RetentionRules(default=Retention(completed=timedelta(days=1))))
    assert steps_of(engine, first) == []
    assert len(steps_of(engine, second)) == 1


async def test_jobs_without_steps_send_no_statement_about_them(engine: Engine, jobs: Jobs) -> None:
    """With the table out of the way any statement that names it would fail."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("plain", retry=immediately)
    def plain(payload: str, ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            raise RuntimeError

    (job_id,) = enqueue(engine, queue.job("plain", "x"))
    write(engine, "ALTER TABLE job_step RENAME TO job_step_away")
    try:
        await drain(queue, engine)
    finally:
        write(engine, "ALTER TABLE job_step_away RENAME TO job_step")
    assert jobs.status(job_id) is JobStatus.COMPLETED


def sleeping_queue(wakes: list[int], *, catches: bool = False) -> JobQueue[Any]:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> str:
        wakes.append(ctx.step("first", lambda: ctx.attempt))
        try:
            ctx.sleep("cooling off", timedelta(days=1))
        except Exception:
            if not catches:
                raise
        return payload

    return queue


@pytest.mark.parametrize("catches", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_sleep_ends_the_attempt_uncounted_and_the_next_one_passes_it(
    engine: Engine, jobs: Jobs, catches: bool
) -> None:
    wakes: list[int] = []
    queue = sleeping_queue(wakes, catches=catches)
    (job_id,) = enqueue(engine, queue.job("sync", "hello"))
    await drain(queue, engine)
    row = jobs.get(job_id)
    assert (row["status"], row["attempt"], row["max_attempts"]) == (JobStatus.PENDING, 1, 2)
    step = Job.Step
    with Session(engine) as session, session.begin():
        began_at, wakes_at = session.execute(
            select(step.started_at, step.completed_at).where(step.name == "cooling off")
        ).one()
        assert row["scheduled_at"] == wakes_at == began_at + timedelta(days=1)
        # Started before its time by an operator, it goes on sleeping.
        session.execute(update(Job).values(scheduled_at=func.now()))
    await drain(queue, engine)
    row = jobs.get(job_id)
    assert (row["status"], row["attempt"], row["scheduled_at"]) == (JobStatus.PENDING, 2, wakes_at)
    drained = await asyncio.to_thread(drain_test, queue, engine, scheduled=True)
    assert drained.completed == 1
    assert jobs.get(job_id)["output"] == "hello"
    assert wakes == [1, 1, 1]
    assert [row["outcome"] for row in jobs.attempts(job_id)] == ["snoozed", "snoozed"]


async def test_a_session_drain_skips_the_time_of_sleeps(engine: Engine) -> None:
    wakes: list[int] = []
    queue = sleeping_queue(wakes)
    async_engine = create_async_engine(engine.url)
    async with AsyncSession(async_engine) as session:
        session.add(queue.job("sync", "hello"))
        assert (await drain_test(queue, session)).snoozed == 1
        drained = await drain_test(queue, session, scheduled=True)
        assert (drained.completed, drained.snoozed) == (1, 0)
        await session.rollback()
    await async_engine.dispose()
    assert wakes == [1, 1]


async def test_a_sleep_is_refused_where_it_cannot_be(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()
    raised: list[str] = []

    @queue.batch_handler("batch", max_size=2)
    def batch(items: list[BatchItem[str]]) -> None:
        with pytest.raises(InvalidOptionError) as caught:
            items[0].context.sleep("x", timedelta(1))
        raised.append(caught.value.option)

    @queue.handler("sync")
    def sync(payload: str, ctx: AttemptContext) -> None:
        for wrong in (timedelta(-1), 5):
            with pytest.raises(InvalidOptionError) as caught:
                ctx.sleep("x", wrong)  # type: ignore[arg-type]
            raised.append(caught.value.option)

    enqueue(engine, queue.job("batch", "a"), queue.job("sync", "a"))
    await drain(queue, engine)
    assert sorted(raised) == ["duration", "duration", "sleep"]


def dying_queue(calls: list[str]) -> JobQueue[Any]:
    queue: JobQueue[Any] = JobQueue()

    def note(name: str) -> str:
        calls.append(name)
        return name

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> None:
        for name in ("first", "second", "third"):
            ctx.step(name, note, name)
        raise RuntimeError

    return queue


@pytest.mark.slow
@pytest.mark.parametrize("from_step", [None, "second"])
async def test_a_redriven_job_keeps_its_steps_or_begins_from_a_named_one(
    engine: Engine, jobs: Jobs, from_step: str | None
) -> None:
    calls: list[str] = []
    queue = dying_queue(calls)
    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    with Session(engine) as session, session.begin():
        where = operations.DeadLetterFilter(job_ids=[job_id])
        with pytest.raises(InvalidOptionError, match="'first', 'second', 'third'"):
            operations.redrive_dead_letters(session, where=where, from_step="secnd")
        operations.redrive_dead_letters(session, where=where, from_step=from_step)
    await drain(queue, engine)
    assert calls == ["first", "second", "third", *(["second", "third"] if from_step else [])]


async def test_the_command_line_shows_steps_and_redrives_from_one(engine: Engine, run: Run, jobs: Jobs) -> None:
    queue = dying_queue([])
    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    printed = run("jobs", "show", job_id).stdout
    assert "steps" in printed
    assert '"second"' in printed
    run("dead-letters", "redrive", "--all", "--from-step", "x", status=2)
    assert jobs.status(job_id) is JobStatus.DEAD
    run("dead-letters", "redrive", "--all", "--from-step", "second")
    assert [step.name for step in call(engine, operations.list_steps, job_id)] == ["first"]


async def test_explain_names_the_sleep_and_the_last_step(engine: Engine, jobs: Jobs) -> None:
    queue = sleeping_queue([])
    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    explanation = call(engine, operations.explain_job, job_id)
    assert explanation.cause is operations.Cause.SLEEPING
    assert explanation.sentence.startswith("It sleeps in step 'cooling off'; it is due in ")
    running = jobs.add(JobStatus.RUNNING)
    jobs.add_worker()
    with Session(engine) as session, session.begin():
        times = {"started_at": func.now(), "completed_at": func.now()}
        columns = {"job_id": running, "name": "draft", "kind": "step", "attempt": 1}
        session.execute(insert(Job.Step).values(columns | times))
    assert "attempt 1 of 20, last recorded step 'draft'" in call(engine, operations.explain_job, running).sentence


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outage_after_a_call_delays_its_record_and_does_not_repeat_the_call(
    engine: Engine, jobs: Jobs, kind: str
) -> None:
    """The connections are cut while the function runs: that of the step before is in the pool, and is broken."""
    queue: JobQueue[Any] = JobQueue()
    called: list[int] = []
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sa_jobqueue tester'"

    def pay() -> str:
        called.append(1)
        assert len(rows(engine, cut)) > 1
        return "paid"

    async def nothing() -> None:
        return

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> str:
        ctx.step("first", lambda: None)
        return ctx.step("pay", pay)

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        await ctx.step("first", nothing)
        return await ctx.step("pay", asyncio.to_thread, pay, output=str)

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "paid", jobs.get(job_id)["last_error"]
    assert called == [1]


def test_a_context_without_a_store_names_the_child_process() -> None:
    with pytest.raises(InvalidOptionError, match='remove isolation="process"') as caught:
        attempt_context().step("x", lambda: None)
    assert caught.value.option == "isolation"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [1, 2])
async def test_a_cursor_continues_after_the_last_recorded_position(
    engine: Engine, jobs: Jobs, kind: str, every: int
) -> None:
    queue: JobQueue[Any] = JobQueue()
    handled_ids: list[int] = []
    positions: list[Any] = []
    ids = [UUID(int=number) for number in range(1, 6)]

    def ids_after(position: UUID | None) -> list[UUID]:
        positions.append(None if position is None else position.int)
        return [job_id for job_id in ids if position is None or job_id > position]

    async def ids_after_async(position: UUID | None) -> AsyncIterator[UUID]:
        for job_id in ids_after(position):
            yield job_id

    def handle(job_id: UUID, ctx: AttemptContext) -> None:
        handled_ids.append(job_id.int)
        if job_id.int == 4 and ctx.attempt == 1:
            raise RuntimeError

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> None:
        for job_id in ctx.cursor("ids", ids_after, position=lambda job_id: job_id, every=every, output=UUID):
            handle(job_id, ctx)
        if ctx.attempt == 2:
            raise RuntimeError

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        async for job_id in ctx.cursor("ids", ids_after_async, position=lambda job_id: job_id, every=every, output=UUID):
            handle(job_id, ctx)
        if ctx.attempt == 2:
            raise RuntimeError

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED, jobs.get(job_id)["last_error"]
    assert positions == [None, 3 if every == 1 else 2]  # and not at all by the third attempt
    assert handled_ids == [1, 2, 3, 4, *([] if every == 1 else [3]), 4, 5]
    (row,) = steps_of(engine, job_id)
    assert row == ("ids", "", "cursor", 2, {"position": str(ids[-1]), "is_done": True})


async def test_a_step_of_a_synchronous_handler_is_refused_on_the_event_loop(engine: Engine, jobs: Jobs) -> None:
    """There it would wait for itself, and stop the worker."""
    queue: JobQueue[Any] = JobQueue()
    raised: list[str] = []

    @queue.middleware
    async def around(ctx: AttemptContext, call_next: Any) -> None:
        with pytest.raises(InvalidOptionError) as caught:
            ctx.step("x", lambda: None)
        raised.append(caught.value.option)
        await call_next()

    @queue.handler("sync")
    def sync(payload: str) -> None: ...

    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    assert raised == ["step"]


def failing_queue(calls: list[str], errors: int, retry: Any) -> JobQueue[Any]:
    """Return handlers with a step that fails so many times."""
    queue: JobQueue[Any] = JobQueue()

    def call(name: str) -> str:
        calls.append(name)
        if len(calls) <= errors:
            raise ConnectionError("busy")
        return name

    async def call_async(name: str) -> str:
        await asyncio.sleep(0)
        return call(name)

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> str:
        return ctx.step("ask", call, payload, retry=retry)

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        return await ctx.step("ask", call_async, payload, retry=retry)

    return queue


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("retry", "errors", "called", "status"),
    [
        (lambda call, error: None if isinstance(error, ConnectionError) else timedelta(0), 1, 1, JobStatus.DEAD),
        pytest.param(Backoff(base=timedelta(microseconds=1)), 4, 5, JobStatus.COMPLETED, marks=pytest.mark.slow),
        pytest.param(Backoff(base=timedelta(microseconds=1)), 9, 5, JobStatus.DEAD, marks=pytest.mark.slow),
        pytest.param(
            lambda call, error: timedelta(0) if call < 7 else None, 6, 7, JobStatus.COMPLETED, marks=pytest.mark.slow
        ),
        pytest.param(None, 1, 1, JobStatus.DEAD, marks=pytest.mark.slow),
    ],
)
async def test_a_step_is_called_again_as_its_own_policy_says(
    engine: Engine, jobs: Jobs, kind: str, retry: Any, errors: int, called: int, status: JobStatus
) -> None:
    calls: list[str] = []
    queue = failing_queue(calls, errors, retry)
    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    assert (len(calls), jobs.status(job_id), jobs.get(job_id)["attempt"]) == (called, status, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_delay_of_a_step_frees_the_slot_and_does_not_count(engine: Engine, jobs: Jobs, kind: str) -> None:
    calls: list[str] = []
    queue = failing_queue(calls, 3, lambda call, error: timedelta(hours=call) if call < 4 else None)
    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    row = jobs.get(job_id)
    assert (row["status"], row["attempt"], row["max_attempts"], len(calls)) == (JobStatus.PENDING, 1, 2, 1)
    with Session(engine) as session:
        (step,) = operations.list_steps(session, job_id)
        explanation = operations.explain_job(session, job_id)
    assert step.completed_at is not None
    assert (step.kind, step.completed_at - step.started_at, step.output) == ("retry", timedelta(hours=1), {"calls": 1})
    assert row["scheduled_at"] == step.completed_at
    assert explanation.cause is operations.Cause.RETRYING
    assert explanation.sentence.startswith("It failed in step 'ask', which is called again in ")
    await asyncio.to_thread(drain_test, queue, engine, scheduled=True)
    row = jobs.get(job_id)
    assert (row["status"], row["output"], row["attempt"], row["max_attempts"]) == (JobStatus.COMPLETED, "x", 4, 4)
    with Session(engine) as session:
        assert [(step.kind, step.output) for step in operations.list_steps(session, job_id)] == [("step", "x")]
    assert (len(calls), [attempt["outcome"] for attempt in jobs.attempts(job_id)]) == (4, ["snoozed"] * 3)


async def test_the_calls_of_a_backoff_with_long_delays_end(engine: Engine, jobs: Jobs) -> None:
    calls: list[str] = []
    queue = failing_queue(calls, 9, Backoff(base=timedelta(hours=1), cap=timedelta(hours=9), jitter=False))
    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await asyncio.to_thread(drain_test, queue, engine, scheduled=True, raise_errors=False)
    assert (jobs.status(job_id), len(calls)) == (JobStatus.DEAD, 5)
    assert jobs.get(job_id)["last_error"]["message"] == "busy"


async def test_steps_beside_one_that_is_called_later_are_recorded_first(engine: Engine, jobs: Jobs) -> None:
    calls: list[str] = []
    failed = asyncio.Event()
    queue: JobQueue[Any] = JobQueue()

    async def ask() -> None:
        calls.append("ask")
        failed.set()
        if calls.count("ask") == 1:
            raise ConnectionError("busy")

    async def draw() -> str:
        await failed.wait()
        calls.append("draw")
        return "picture"

    @queue.handler("draw")
    async def handle(payload: str, ctx: AttemptContext) -> str:
        _, picture = await asyncio.gather(
            ctx.step("ask", ask, retry=lambda call, error: timedelta(hours=1)), ctx.step("draw", draw)
        )
        return picture

    (job_id,) = enqueue(engine, queue.job("draw", "x"))
    await drain(queue, engine)
    with Session(engine) as session:
        assert [(step.name, step.kind) for step in operations.list_steps(session, job_id)] == [
            ("draw", "step"),
            ("ask", "retry"),
        ]
    with Session(engine) as session, session.begin():
        session.execute(update(Job).values(scheduled_at=func.now()))  # called again immediately if an operator makes it due
    await drain(queue, engine)
    assert (jobs.get(job_id)["output"], calls) == ("picture", ["ask", "draw", "ask"])


@pytest.mark.parametrize("signal", [Discard("no"), Snooze(timedelta(hours=1))])
async def test_a_signal_that_a_step_raises_is_not_retried(engine: Engine, signal: Exception) -> None:
    calls: list[str] = []
    queue: JobQueue[Any] = JobQueue()

    def call() -> None:
        calls.append("x")
        raise signal

    @queue.handler("sync")
    def sync(payload: str, ctx: AttemptContext) -> None:
        ctx.step("ask", call, retry=immediately)

    enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    assert calls == ["x"]


async def test_a_policy_that_is_none_is_refused_before_the_call(engine: Engine, jobs: Jobs) -> None:
    calls: list[str] = []
    queue = failing_queue(calls, 0, 3)
    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    assert "retry: must be a Backoff or a function" in jobs.get(job_id)["last_error"]["message"]
    assert calls == []


async def test_an_event_tells_of_each_step_that_was_recorded(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> None:
        ctx.step("ask", str, "x", key=1)
        with ctx.transaction("charge"):
            pass
        assert list(ctx.cursor("rows", lambda at: [1, 2], position=int)) == ([1, 2] if ctx.attempt == 1 else [])
        if ctx.attempt == 1:
            raise RuntimeError

    enqueue(engine, queue.job("sync", "x"))
    log = await drain(queue, engine)
    steps = log.of(StepCompleted)
    assert [(step.kind, step.name, step.key) for step in steps] == [
        (StepKind.STEP, "ask", "1"),
        (StepKind.TRANSACTION, "charge", ""),
        (StepKind.CURSOR, "rows", ""),
    ]
    assert all(step.type_name == "sync" and step.attempt == 1 and step.ran >= timedelta(0) for step in steps)


def test_a_session_drain_rolls_back_a_transaction_that_raises(engine: Engine, effects: Callable[[], list[str]]) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> None:
        try:
            with ctx.transaction("charge") as session:
                assert session is not None
                session.execute(WRITE, {"job": payload})
                raise ZeroDivisionError
        except ZeroDivisionError:
            return

    with Session(engine) as session:
        session.add(queue.job("sync", "a"))
        assert drain_test(queue, session).completed == 1
        assert list(session.scalars(text("SELECT job FROM effect"))) == []


async def test_the_items_of_a_batch_have_steps(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.batch_handler("batch", max_size=2)
    async def batch(items: list[BatchItem[str]]) -> list[int]:
        async def length(text: str) -> int:
            return len(text)

        return [await item.context.step("length", length, item.payload) for item in items]

    ids = enqueue(engine, queue.job("batch", "a"), queue.job("batch", "bb"))
    await drain(queue, engine)
    assert [jobs.get(job_id)["output"] for job_id in ids] == [1, 2]
    assert [steps_of(engine, job_id)[0][4] for job_id in ids] == [1, 2]


def test_a_step_whose_answer_was_lost_is_recorded_once_by_the_second_try(
    engine: Engine, jobs: Jobs, manual_worker: MakeWorker
) -> None:
    jobs.add_worker("one:1")
    job_id = jobs.add()
    (job,) = manual_worker("one:1").claim()
    for _ in range(2):
        call(engine, record_step, Job, cast("Any", job), "one:1", kind=StepKind.STEP, place=("pay", ""), output='"paid"')
    assert steps_of(engine, job_id) == [("pay", "", "step", 1, "paid")]


async def test_each_call_of_a_step_has_its_own_timeout_under_its_retry_policy(engine: Engine, jobs: Jobs) -> None:
    calls: list[int] = []
    queue: JobQueue[Any] = JobQueue()

    async def model() -> str:
        calls.append(len(calls))
        if len(calls) < 3:
            await asyncio.Event().wait()
        return "draft"

    @queue.handler("answer", max_attempts=1)
    async def answer(payload: None, ctx: AttemptContext) -> str:
        short = timedelta(milliseconds=20)
        draft = await ctx.step("draft", model, timeout=short, retry=lambda call, error: timedelta(0))
        try:
            await ctx.step("for ever", asyncio.Event().wait, timeout=short, catch=TimeoutError)
        except TimeoutError:
            return draft + ", late"
        return draft

    (job_id,) = enqueue(engine, queue.job("answer", None))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "draft, late"
    assert calls == [0, 1, 2]


async def test_a_timeout_of_a_step_in_a_thread_is_refused(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("answer", max_attempts=1)
    def answer(payload: None, ctx: AttemptContext) -> str:
        return ctx.step("draft", str, timeout=timedelta(seconds=1))

    (job_id,) = enqueue(engine, queue.job("answer", None))
    await drain(queue, engine)
    assert "nothing interrupts the thread" in jobs.get(job_id)["last_error"]["message"]
