"""Type checker results for handlers and the jobs they make. Read by `test_types.py`, not run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import AttemptContext, ChildJob, EventWait, Job, JobMixin, JobQueue, Timer
from sa_jobqueue.context import Continuation
from sa_jobqueue.registry import Handler
from tests.typing import jobs_of

jobs = JobQueue()
assert_type(jobs, JobQueue[Job])


@dataclass
class Order:
    order_id: int


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_prefix="typing_text_"):
    """A queue with text ids."""


texts = JobQueue(TextJob)


@texts.handler("send")
def send(to: str) -> None: ...


@jobs.handler("plain", max_attempts=8, timeout=timedelta(minutes=2))
def plain(order: Order) -> int:
    return order.order_id


@jobs.handler("injected")
def injected(order: Order, session: Session, ctx: AttemptContext) -> int:
    return order.order_id


@jobs.handler("asynchronous")
async def asynchronous(order: Order, session: AsyncSession) -> int:
    return order.order_id


@jobs.handler("untyped")
def untyped(order: Any) -> None: ...


@jobs.handler("document")
def document(order: dict[str, Any], *, session: Session) -> None: ...


@jobs.handler("tick")
def tick() -> None: ...


@jobs.handler("sweep")
def sweep(session: Session, ctx: AttemptContext) -> None: ...


@jobs.handler("sweep_async")
async def sweep_async(session: AsyncSession) -> int:
    return 1


# Options of handlers and settings of queues have types, though they are declared elsewhere.
jobs.handler("options", max_attempts="8")  # E: incompatible type "str"; expected "int"
jobs.handler("options", attempts=8)  # E: Unexpected keyword argument "attempts"
jobs.keyword_handler("options", priority="high")  # E: incompatible type "str"; expected "int"
jobs.batch_handler("options")  # E: Missing named argument "max_size"
jobs.batch_handler("options", max_size=10, isolation="process")  # E: Unexpected keyword argument "isolation"
jobs.queue("mail", weight="1")  # E: incompatible type "str"; expected "int"

# What is kept: the payload's type, the output's, and the class of the jobs.
assert_type(jobs_of(plain), Handler[Order, int, Job])
assert_type(jobs_of(injected), Handler[Order, int, Job])
assert_type(jobs_of(asynchronous), Handler[Order, int, Job])
assert_type(jobs_of(document), Handler[dict[str, Any], None, Job])
assert_type(jobs_of(untyped), Handler[Any, None, Job])
assert_type(jobs_of(tick), Handler[None, None, Job])
other_payload: Handler[str, int, Job] = plain  # E: Incompatible types in assignment
other_output: Handler[Order, str, Job] = injected  # E: Incompatible types in assignment


# A direct call has the parameters of the function.
async def called(session: Session, asynchronous_session: AsyncSession, ctx: AttemptContext) -> None:
    plain(Order(7))
    injected(Order(7), session, ctx)
    injected(Order(7), session=session, ctx=ctx)
    await asynchronous(Order(7), asynchronous_session)
    sweep(session, ctx)
    by_name(order_id=7, session=session)
    by_name(7, session)
    batched([Order(1), Order(2)], session)
    plain(7)  # E: Argument 1 to "__call__" of "Handler" has incompatible type "int"; expected "Order"
    plain()  # E: Too few arguments
    injected(Order(7), session)  # E: Missing positional argument
    injected(Order(7), session, session)  # E: expected "AttemptContext"
    by_name(order_id="x", session=session)  # E: expected "int"
    by_name(ordr_id=7, session=session)  # E: Unexpected keyword argument "ordr_id"
    batched([7], session)  # E: expected "Order"
    tick(1)  # E: Too many arguments


# A payload of the right type makes a job.
assert_type(plain.job(Order(7)), Job)
assert_type(injected.job(Order(7), delay=timedelta(minutes=5), queue="mail"), Job)
assert_type(asynchronous.job(Order(7)), Job)
assert_type(untyped.job(7), Job)
assert_type(document.job({"order_id": 7}), Job)

# Any other is refused.
plain.job(7)  # E: incompatible type "int"; expected "Order"
plain.job({"order_id": 7})  # E: incompatible type "dict[str, int]"; expected "Order"
plain.job(None)  # E: incompatible type "None"; expected "Order"
plain.job()  # E: Missing positional argument "payload"
plain.job(order=Order(7))  # E: Missing positional argument "payload"
injected.job(7)  # E: incompatible type "int"; expected "Order"
asynchronous.job(7)  # E: incompatible type "int"; expected "Order"
document.job([7])  # E: incompatible type "list[int]"; expected "dict[str, Any]"

# So is an option of a wrong type.
plain.job(Order(7), delay=5)  # E: "delay" to "job" of "Handler" has incompatible type "int"
plain.job(Order(7), priority="high")  # E: "priority" to "job" of "Handler" has incompatible type "str"

# A function that takes nothing, or only what is injected, needs no payload and takes none.
assert_type(tick.job(), Job)
assert_type(tick.job(None, delay=timedelta(minutes=5)), Job)
assert_type(sweep.job(), Job)
assert_type(sweep_async.job(), Job)
tick.job(7)  # E: No overload variant of "job" of "Handler" matches argument type "int"
tick.job(delay=5)  # E: No overload variant of "job"
sweep.job(7)  # E: No overload variant of "job" of "Handler" matches argument type "int"

# A retry policy is a function of the attempt and its error.
jobs.handler("retried", retry=lambda attempt, error: timedelta(seconds=attempt))
jobs.handler("retried", retry=lambda attempt, error: None)
jobs.handler("retried", retry=lambda attempt: timedelta(0))  # E: expected "RetryPolicy | None"


async def enqueued(
    session: Session,
    asynchronous_session: AsyncSession,
    connection: Connection,
    asynchronous_connection: AsyncConnection,
) -> None:
    # The result is an id of the type that the class of the jobs has.
    assert_type(plain.enqueue(session, Order(1), delay=timedelta(hours=1)), UUID)
    assert_type(await plain.enqueue(asynchronous_session, Order(1)), UUID)
    assert_type(tick.enqueue(session), UUID)
    assert_type(tick.enqueue(connection, priority=3), UUID)
    assert_type(await plain.enqueue(asynchronous_connection, Order(1)), UUID)
    assert_type(await sweep.enqueue(asynchronous_session), UUID)
    assert_type(send.enqueue(session, "a@b"), str)
    assert_type(await send.enqueue(asynchronous_session, "a@b"), str)
    plain.enqueue(asynchronous_session, Order(1))  # E: must be used
    plain.enqueue(session, 1)  # E: No overload variant

    # Options have types wherever they are passed.
    plain.enqueue(session, Order(1), delay=5)  # E: No overload variant of "enqueue"
    tick.enqueue(session, priority="high")  # E: No overload variant of "enqueue"
    by_name.enqueue(session, order_id=7, delay=5)  # E: No overload variant of "enqueue"
    plain.enqueue_many(session, [Order(1)], queue=3)  # E: No overload variant of "enqueue_many"
    plain.continuation(Order(1), max_attempts="8")  # E: "max_attempts" to "continuation"
    plain.blocker(Order(1), timeout=5)  # E: No overload variant of "blocker"


@jobs.keyword_handler("typing.by_name")
def by_name(order_id: int, session: Session) -> int:
    return order_id


@jobs.batch_handler("typing.batched", max_size=10)
def batched(orders: list[Order], session: Session) -> None: ...


# Checkers end soon where a decorator is chosen at run time.
def declared(func: Any, is_by_name: bool) -> None:
    (jobs.keyword_handler if is_by_name else jobs.handler)("typing.chosen", max_attempts=1)(func).job(order_id=7)
    for register in (jobs.handler, jobs.keyword_handler):
        register("typing.registered")(func)


assert_type(by_name.job(order_id=7), Job)
assert_type(by_name.job({"order_id": 7}, delay=timedelta(minutes=5)), Job)
assert_type(by_name.continuation(order_id=7), Continuation[int])


def enqueued_by_name(session: Session) -> None:
    assert_type(by_name.enqueue(session, order_id=7), UUID)
    assert_type(by_name.enqueue(session, {"order_id": 7}), UUID)
    by_name.enqueue_many(session, [{"order_id": 7}])
    by_name.enqueue(session, 7)  # E: No overload variant
    by_name.enqueue_many(session, [7])  # E: List item 0 has incompatible type "int"; expected "Fields"


# A job of a listing has no type for the type checker; its handler gives the payload of its own type.
def payloads(listed: Job) -> None:
    assert_type(plain.payload(listed), Order)
    assert_type(document.payload(listed), dict[str, Any])
    assert_type(tick.payload(listed), None)
    assert_type(by_name.payload(listed)["order_id"], Any)
    assert_type(untyped.payload(listed), Any)
    print(plain.payload(listed).number)  # E: "Order" has no attribute "number"
    plain.payload(7)  # E: "payload" of "Handler"


# The result of a step is that of its function, or of `output`; a transaction may have been committed before.
async def ask(prompt: str) -> Order:
    return Order(len(prompt))


async def steps(ctx: AttemptContext) -> None:
    assert_type(await ctx.step("ask", ask, "why"), Order)
    assert_type(await ctx.step("ask", ask, "why", output=int), int)
    async with ctx.transaction("charge") as session:
        session.add(Order(1))  # E: Item "None" of "AsyncSession | None" has no attribute "add"
    async for _ in ctx.cursor("rows", lambda position: [Order(1)], position=lambda row: row.order_id):  # E: "Iterator
        pass


def sync_steps(ctx: AttemptContext) -> None:
    assert_type(ctx.step("count", len, "why"), int)
    with ctx.transaction("charge") as session:
        if session is not None:
            assert_type(session, Session)
    for row in ctx.cursor("rows", lambda position: [Order(1)], position=lambda row: row.order_id):
        assert_type(row, Order)


# Groups of steps have the types of their requests, with and without `await`.
@jobs.handler("pack")
async def pack(order: Order) -> int:
    return order.order_id


async def groups(ctx: AttemptContext) -> None:
    results = await ctx.all(*(ChildJob(pack, Order(number), key=number) for number in range(3)))
    assert_type(results[0], int)
    outcomes = await ctx.all(ChildJob(pack, Order(1)), return_exceptions=True)
    assert_type(outcomes[0], int | Exception)
    wait = EventWait("approval", event="approved", timeout=timedelta(days=7), output=Order)
    assert_type((await ctx.first("decision", wait, Timer("patience", timedelta(days=2)))).value, Order | None)
    ChildJob(pack, "7")  # E: "ChildJob"


def sync_groups(ctx: AttemptContext) -> None:
    assert_type(ctx.all(ChildJob(pack, Order(1)))[0], int)
    assert_type(ctx.first("decision", ChildJob(pack, Order(1)), Timer("patience", timedelta(days=2))).value, int | None)
