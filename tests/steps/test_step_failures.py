"""A recorded fact stays a fact: declared errors of steps are recorded, and after any other error no step begins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus
from sa_jobqueue.errors import InvalidOptionError, Retry
from sa_jobqueue.operations import send_event
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.worker.background.pruner import Pruner
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, rows, scalar, scalars, write
from tests.fixtures.workers import drain, shared

pytestmark = pytest.mark.every_python

KINDS = ["sync", "async"]
HOUR = timedelta(hours=1)
EVENT = "paid:7"


class DeclinedError(Exception):
    """An error with a constructor of its own."""

    def __init__(self, code: int, reason: str = "no reason") -> None:
        self.code = code
        super().__init__(code, reason)


class SecretiveError(Exception):
    """An error that cannot be rebuilt from its arguments."""

    def __init__(self) -> None:
        super().__init__("broke", object())


def saga(called: list[str], catch: Any, error: Exception) -> JobQueue[Any]:
    """Return handlers that charge, mail about a declined card, and fail in their first attempt after that."""
    queue: JobQueue[Any] = JobQueue()

    def charge(payload: str) -> str:
        called.append("charge")
        if called.count("charge") == 1:
            raise error
        return "charged"

    def mail(outcome: str) -> str:
        called.append(f"mail {outcome}")
        return outcome

    async def charge_later(payload: str) -> str:
        return charge(payload)

    async def mail_later(outcome: str) -> str:
        return mail(outcome)

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> str:
        try:
            outcome = ctx.step("charge", charge, payload, catch=catch)
        except type(error) as caught:
            outcome = f"{caught.args[0]}"
        mailed = ctx.step("mail", mail, outcome)
        if ctx.attempt == 1:
            raise RuntimeError("crash")
        return mailed

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        try:
            outcome = await ctx.step("charge", charge_later, payload, catch=catch)
        except type(error) as caught:
            outcome = f"{caught.args[0]}"
        mailed = await ctx.step("mail", mail_later, outcome)
        if ctx.attempt == 1:
            raise RuntimeError("crash")
        return mailed

    return queue


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("error", "outcome"),
    [(DeclinedError(51), "51"), (ValueError("no card"), "no card"), (SecretiveError(), "('broke', <object object at")],
    ids=["arguments", "message", "no JSON"],
)
async def test_a_declared_error_is_recorded_and_its_step_is_not_called_again(
    engine: Engine, jobs: Jobs, kind: str, error: Exception, outcome: str
) -> None:
    called: list[str] = []
    queue = saga(called, (KeyError, type(error)), error)
    (job_id,) = enqueue(engine, queue.job(kind, "order 7"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    assert jobs.get(job_id)["output"].startswith(outcome)
    assert called == ["charge", f"mail {jobs.get(job_id)['output']}"]
    kinds = rows(engine, select(Job.Step.name, Job.Step.kind).order_by(Job.Step.completed_at))
    assert [tuple(row) for row in kinds] == [("charge", "failure"), ("mail", "step")]


@pytest.mark.parametrize("kind", KINDS)
async def test_after_an_undeclared_error_no_step_begins_and_the_attempt_fails_with_it(
    engine: Engine, jobs: Jobs, kind: str
) -> None:
    """The handler catches both the error and the refusal of the next step."""
    called: list[str] = []
    queue: JobQueue[Any] = JobQueue()

    def charge() -> str:
        called.append("charge")
        if called.count("charge") == 1:
            raise DeclinedError(51)
        return "charged"

    async def charge_later() -> str:
        return charge()

    async def mail_later() -> None:
        called.append("mail")

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> str:
        for name, step in (("charge", charge), ("mail", lambda: called.append("mail"))):
            try:
                ctx.step(name, step)
            except Exception as error:
                called.append(type(error).__name__)
        return "done"

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        for name, step in (("charge", charge_later), ("mail", mail_later)):
            try:
                await ctx.step(name, step)
            except Exception as error:
                called.append(type(error).__name__)
        return "done"

    (job_id,) = enqueue(engine, queue.job(kind, "order 7"))
    await drain(queue, engine)
    assert called == ["charge", "DeclinedError", "StepRefusedError", "charge", "mail"]
    (failed,) = jobs.attempts(job_id)
    assert failed["error"]["type"].endswith("DeclinedError")
    assert jobs.get(job_id)["output"] == "done"


async def test_a_refused_step_names_both_steps_and_the_declaration(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    messages: list[str] = []

    def fail() -> None:
        raise DeclinedError(51)

    @queue.handler("pay", max_attempts=1)
    def pay(payload: str, ctx: AttemptContext) -> None:
        for step_call in (
            lambda: ctx.step("charge", fail),
            lambda: ctx.step("mail", print),
            lambda: ctx.wait_for("paid", event=EVENT, timeout=HOUR),
        ):
            try:
                step_call()
            except Exception as error:
                messages.append(str(error))

    (job_id,) = enqueue(engine, queue.job("pay", "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    assert "step 'mail' does not begin, because step 'charge' raised DeclinedError" in messages[1]
    assert "catch=DeclinedError" in messages[1]


async def test_a_handler_may_return_after_an_undeclared_error(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()

    def fail() -> None:
        raise DeclinedError(51)

    @queue.handler("pay")
    def pay(payload: str, ctx: AttemptContext) -> str:
        try:
            ctx.step("charge", fail)
        except DeclinedError:
            return "declined"
        return "charged"

    (job_id,) = enqueue(engine, queue.job("pay", "x"))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "declined"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_declared_error_of_a_transaction_is_recorded_and_its_writes_are_not(
    engine: Engine, jobs: Jobs, kind: str
) -> None:
    blocks: list[int] = []
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> str:
        outcome = "charged"
        try:
            with ctx.transaction("charge", catch=DeclinedError) as session:
                assert session is not None
                blocks.append(ctx.attempt)
                session.execute(text("INSERT INTO threshold (name, value) VALUES ('queue_depth', 1)"))
                raise DeclinedError(51)
        except DeclinedError as error:
            outcome = f"{error.code}"
        if ctx.attempt == 1:
            raise RuntimeError("crash")
        return outcome

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        outcome = "charged"
        try:
            async with ctx.transaction("charge", catch=DeclinedError) as session:
                assert session is not None
                blocks.append(ctx.attempt)
                await session.execute(text("INSERT INTO threshold (name, value) VALUES ('queue_depth', 1)"))
                raise DeclinedError(51)
        except DeclinedError as error:
            outcome = f"{error.code}"
        if ctx.attempt == 1:
            raise RuntimeError("crash")
        return outcome

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "51"
    assert blocks == [1]
    assert scalar(engine, "SELECT count(*) FROM threshold") == 0


async def test_a_recorded_error_that_catch_no_longer_names_is_an_error_that_says_so(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()

    def fail() -> None:
        raise DeclinedError(51)

    @queue.handler("pay", retry=immediately, max_attempts=2)
    def pay(payload: str, ctx: AttemptContext) -> None:
        ctx.step("charge", fail, catch=DeclinedError if ctx.attempt == 1 else ValueError)

    (job_id,) = enqueue(engine, queue.job("pay", "x"))
    await drain(queue, engine)
    error = jobs.attempts(job_id)[-1]["error"]
    assert error["type"].endswith("StepOutputError")
    assert "`catch` no longer names that class" in error["message"]


@pytest.mark.parametrize("catch", [Retry, "DeclinedError", (DeclinedError, 1), BaseException])
async def test_what_is_no_class_of_errors_is_refused_before_the_call(engine: Engine, jobs: Jobs, catch: Any) -> None:
    queue: JobQueue[Any] = JobQueue()
    called: list[str] = []

    @queue.handler("pay", max_attempts=1)
    def pay(payload: str, ctx: AttemptContext) -> None:
        with pytest.raises(InvalidOptionError, match="catch"):
            ctx.step("charge", called.append, "charge", catch=catch)

    (job_id,) = enqueue(engine, queue.job("pay", "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    assert called == []


@pytest.mark.parametrize("result", [{1, 2}, b"\x00", float("nan"), "x" * 1_100_000], ids=["set", "bytes", "nan", "large"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_that_can_never_be_stored_makes_a_dead_letter_after_one_call(
    engine: Engine, jobs: Jobs, kind: str, result: Any
) -> None:
    queue: JobQueue[Any] = JobQueue()
    called: list[int] = []

    def pay() -> Any:
        called.append(1)
        return result

    async def pay_later() -> Any:
        return pay()

    @queue.handler("sync", retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> None:
        ctx.step("pay", pay)

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        await ctx.step("pay", pay_later)

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    (dead_letter,) = jobs.dead_letters(job_id)
    assert (called, dead_letter["reason"]) == ([1], "discarded")


async def test_the_first_attempt_gets_the_value_that_later_ones_get(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()
    results: list[Any] = []

    def pair():  # type: ignore[no-untyped-def]
        return (1, {"a": (2,)})

    @queue.handler("pay", retry=immediately)
    def pay(payload: str, ctx: AttemptContext) -> None:
        results.append(ctx.step("pair", pair))
        if ctx.attempt == 1:
            raise RuntimeError("crash")

    enqueue(engine, queue.job("pay", "x"))
    await drain(queue, engine)
    assert results == [[1, {"a": [2]}]] * 2
    assert isinstance(results[0], list)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_session_of_a_transaction_is_refused_after_its_block(engine: Engine, jobs: Jobs, kind: str) -> None:
    queue: JobQueue[Any] = JobQueue()
    write = text("INSERT INTO threshold (name, value) VALUES ('queue_depth', 1)")

    @queue.handler("sync", retry=immediately, max_attempts=2)
    def sync(payload: str, ctx: AttemptContext) -> None:
        with ctx.transaction("charge") as session:
            pass
        if session is not None:
            session.execute(write)
            session.commit()

    @queue.handler("async", retry=immediately, max_attempts=2)
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        async with ctx.transaction("charge") as session:
            pass
        if session is not None:
            await session.execute(write)
            await session.commit()

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    refused = jobs.attempts(job_id)[0]["error"]
    assert refused["type"].endswith("HandlerCommitError")
    assert "after its block" in refused["message"]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM threshold")) == 0
        open_transactions = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        )
        assert connection.scalar(text(open_transactions)) == 0


async def test_a_step_beside_a_wait_is_recorded_before_the_attempt_ends(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    called: list[int] = []
    is_waiting = asyncio.Event()

    async def pay() -> str:
        called.append(1)
        await is_waiting.wait()
        return "paid"

    @queue.handler("both")
    async def both(payload: str, ctx: AttemptContext) -> list[Any]:
        asyncio.get_running_loop().call_later(0.05, is_waiting.set)
        return list(await asyncio.gather(ctx.wait_for("wait", event=EVENT, timeout=HOUR), ctx.step("pay", pay)))

    (job_id,) = enqueue(engine, queue.job("both", "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    call(engine, send_event, EVENT, "approved")
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == ["approved", "paid"]
    assert called == [1]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_that_was_sent_while_a_job_waited_is_the_jobs_whatever_expires(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, kind: str
) -> None:
    """Its `keep` ends and the pruner walks before the job's next attempt; another event of the name does not replace it."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync")
    def sync(payload: str, ctx: AttemptContext) -> Any:
        return ctx.wait_for("wait", event=EVENT, timeout=HOUR)

    @queue.handler("async")
    async def asynchronous(payload: str, ctx: AttemptContext) -> Any:
        return await ctx.wait_for("wait", event=EVENT, timeout=HOUR)

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    assert call(engine, send_event, EVENT, "first")
    write(engine, update(Job.Event).values(expires_at=func.now()))
    await Pruner(shared(async_engine)).walk_events()
    assert not call(engine, send_event, EVENT, "second")
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "first"
    await Pruner(shared(async_engine)).walk_events()
    assert scalars(engine, select(Job.Event.name)) == []


async def test_a_step_beside_a_wait_may_need_the_event_that_was_sent(engine: Engine, jobs: Jobs) -> None:
    """The wait returns the event before the step ends, which waits for it."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("both")
    async def both(payload: str, ctx: AttemptContext) -> str:
        approved = asyncio.Event()

        async def pay() -> str:
            await approved.wait()
            return "paid"

        async def approve() -> None:
            await ctx.wait_for("wait", event=EVENT, timeout=HOUR)
            approved.set()

        _, paid = await asyncio.gather(approve(), ctx.step("pay", pay))
        return paid

    call(engine, send_event, EVENT, "approved")
    (job_id,) = enqueue(engine, queue.job("both", "x"))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "paid"
