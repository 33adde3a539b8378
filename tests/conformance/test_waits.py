"""Waiting: sleeps, events, and rows that a waiting job has written."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, EventWait, Job, JobStatus, Timer
from sa_jobqueue.operations import send_event
from sa_jobqueue.testing import drain as drain_test
from tests.conformance.behaviours import differs, has
from tests.conformance.conftest import Flow

DAY = timedelta(days=1)


async def decide(ctx: AttemptContext) -> Any:
    """Wait for an approval."""
    return await ctx.wait_for("approval", event="approved", timeout=DAY)


@has(31, "A sleep takes no slot")
async def test_a_sleep_takes_no_slot(flow: Flow) -> None:
    async def rest(ctx: AttemptContext) -> None:
        await ctx.sleep("rest", DAY)

    flow.handler(rest)
    ids = [flow.enqueue("rest") for _ in range(3)]
    await flow.go_on()
    assert {flow.status(job_id) for job_id in ids} == {JobStatus.PENDING}


@has(32, "A sleep ends by the database's clock")
async def test_a_sleep_ends_by_the_databases_clock(flow: Flow) -> None:
    async def rest(ctx: AttemptContext) -> None:
        await ctx.sleep("rest", DAY)

    await flow.run(rest)
    with Session(flow.engine) as session:
        is_a_day_later = Job.scheduled_at - Job.Step.started_at == DAY
        assert session.scalar(select(is_a_day_later).join(Job.Step, Job.Step.job_id == Job.id))


@differs(33, "Sleep until an instant", "a duration, which the handler computes in a step")
async def test_a_sleep_has_a_duration(flow: Flow) -> None:
    instant = datetime.now(UTC) + DAY

    async def rest(ctx: AttemptContext) -> None:
        async def remaining() -> float:
            return (instant - datetime.now(UTC)).total_seconds()

        await ctx.sleep("rest", timedelta(seconds=await ctx.step("remaining", remaining)))

    row = await flow.run(rest)
    assert abs(row["scheduled_at"] - instant) < timedelta(minutes=1)


@has(34, "The end of a sleep is not renewed")
async def test_the_end_of_a_sleep_is_not_renewed(flow: Flow) -> None:
    async def rest(ctx: AttemptContext) -> None:
        await ctx.sleep("rest", DAY)

    until = (await flow.run(rest))["scheduled_at"]
    flow.wake()
    assert (await flow.go_on())["scheduled_at"] == until


@has(35, "Tests skip the time of sleeps")
def test_tests_skip_the_time_of_sleeps(flow: Flow) -> None:
    def rest(ctx: AttemptContext) -> str:
        ctx.sleep("rest", DAY)
        return "rested"

    handler = flow.handler(rest)
    with Session(flow.engine) as session:
        job_id = handler.enqueue(session)
        drain_test(flow.queue, session, until=2 * DAY)
        assert session.get_one(Job, job_id).output == "rested"
        session.rollback()


@has(36, "An event that was sent before the wait is kept")
async def test_an_early_event_is_kept(flow: Flow) -> None:
    flow.send("approved", "ann")
    assert (await flow.run(decide))["output"] == "ann"


@has(37, "The first event of a name counts")
async def test_the_first_event_counts(flow: Flow) -> None:
    flow.send("approved", "ann")
    flow.send("approved", "bob")
    assert (await flow.run(decide))["output"] == "ann"


@has(38, "A timeout ends a wait and is not renewed")
async def test_a_timeout_is_recorded(flow: Flow) -> None:
    async def hasty(ctx: AttemptContext) -> str:
        try:
            return str(await ctx.wait_for("approval", event="approved", timeout=timedelta(0)))
        except TimeoutError:
            flow.crash(ctx, 1, 2)
            return "no answer"

    flow.handler(hasty)
    flow.enqueue("hasty")
    await flow.go_on()
    flow.send("approved", "too late")
    assert (await flow.go_on())["output"] == "no answer"


@has(39, "Many jobs wait for one event")
async def test_many_jobs_wait_for_one_event(flow: Flow) -> None:
    flow.handler(decide)
    ids = [flow.enqueue("decide") for _ in range(3)]
    await flow.go_on()
    flow.send("approved", "ann")
    await flow.go_on()
    assert [flow.row(job_id)["output"] for job_id in ids] == ["ann"] * 3


@has(40, "An event that is sent while a job begins to wait is not missed")
async def test_an_event_that_races_with_the_wait_is_not_missed(flow: Flow) -> None:
    flow.handler(decide)
    ids = [flow.enqueue("decide") for _ in range(5)]
    await asyncio.gather(flow.go_on(), asyncio.to_thread(flow.send, "approved", "ann"))
    await flow.go_on()
    assert [flow.row(job_id)["output"] for job_id in ids] == ["ann"] * 5


@has(41, "An event is sent in the caller's transaction")
async def test_an_event_that_is_rolled_back_was_not_sent(flow: Flow) -> None:
    await flow.run(decide)
    with Session(flow.engine) as session:
        send_event(session, "approved", "ann")
        session.rollback()
    await flow.go_on()
    assert flow.status() is JobStatus.PENDING
    flow.send("approved", "bob")
    assert (await flow.go_on())["output"] == "bob"


@has(42, "Sending is idempotent")
def test_sending_twice_changes_nothing(flow: Flow) -> None:
    assert [flow.send("approved", "ann"), flow.send("approved", "ann")] == [True, False]


@differs(43, "An inbox: many messages to one job, in order", "one payload a name; numbered names are consumed in order")
async def test_numbered_events_are_consumed_in_order(flow: Flow) -> None:
    async def chat(ctx: AttemptContext) -> list[str]:
        texts: list[str] = []
        while not texts or texts[-1] != "bye":
            name = f"message:{ctx.job.id}:{len(texts)}"
            texts.append(await ctx.wait_for("message", event=name, timeout=DAY, key=len(texts), output=str))
        return texts

    await flow.run(chat)
    flow.send(f"message:{flow.job_id}:1", "bye")
    flow.send(f"message:{flow.job_id}:0", "hello")
    assert (await flow.go_on())["output"] == ["hello", "bye"]


@differs(44, "Many events are sent by one call", "one call each, in one transaction")
async def test_many_events_are_sent_in_one_transaction(flow: Flow) -> None:
    with Session(flow.engine) as session, session.begin():
        for number in range(5):
            send_event(session, f"approved:{number}")
    with Session(flow.engine) as session:
        assert session.scalar(select(func.count(Job.Event.name))) == 5
        assert session.scalar(select(func.count(Job.Event.sent_by.distinct()))) == 1


@has(45, "Wait for the first of several")
async def test_the_first_of_several_wins(flow: Flow) -> None:
    async def first(ctx: AttemptContext) -> Any:
        approval = EventWait("approval", event="approved", timeout=DAY, output=str)
        refusal = EventWait("refusal", event="refused", timeout=DAY, output=str)
        return (await ctx.first("decision", approval, refusal, Timer("patience", DAY))).name

    await flow.run(first)
    flow.send("refused", "bob")
    assert (await flow.go_on())["output"] == "refusal"


@dataclass
class Answer:
    """The callback of a payment provider."""

    receipt: str | None = None
    error: str | None = None


@differs(46, "A callback is failed from outside", "its payload says so, by its type")
async def test_a_payload_says_that_a_callback_failed(flow: Flow) -> None:
    async def pay(ctx: AttemptContext) -> str:
        answer = await ctx.wait_for("paid", event="paid", timeout=DAY, output=Answer)
        return f"failed: {answer.error}" if answer.error else "paid"

    await flow.run(pay)
    flow.send("paid", Answer(error="no funds"))
    assert (await flow.go_on())["output"] == "failed: no funds"


@differs(47, "A callback sends heartbeats", "waits with short timeouts, one an expected sign of life")
async def test_signs_of_life_are_waits_with_short_timeouts(flow: Flow) -> None:
    async def follow(ctx: AttemptContext) -> str:
        for number in range(3):
            try:
                await ctx.wait_for("alive", event=f"alive:{number}", timeout=timedelta(0), key=number)
            except TimeoutError:
                return f"silent after {number}"
        return "finished"

    flow.send("alive:0")
    flow.send("alive:1")
    flow.handler(follow)
    flow.enqueue("follow")
    await flow.go_on()
    assert (await flow.go_on())["output"] == "silent after 2"


@differs(48, "Wait until a condition holds", "a loop of steps and sleeps, each with its key")
def test_a_loop_waits_until_a_condition_holds(flow: Flow) -> None:
    ready = iter([False, False, True])

    def poll(ctx: AttemptContext) -> int:
        number = 0
        while not ctx.step("is ready", lambda: next(ready), key=number, output=bool):
            ctx.sleep("rest", DAY, key=number)
            number += 1
        return number

    handler = flow.handler(poll)
    with Session(flow.engine) as session:
        job_id = handler.enqueue(session)
        drain_test(flow.queue, session, until=7 * DAY)
        assert session.get_one(Job, job_id).output == 2
        session.rollback()


@differs(49, "A job publishes values that others read", "it writes rows of the application, once each")
async def test_a_job_publishes_rows(flow: Flow) -> None:
    async def publish(ctx: AttemptContext) -> Any:
        async with ctx.transaction("published") as session:
            if session is not None:
                session.add(Job("value", {"stage": "picked"}, _handler=None))
        return await ctx.wait_for("approval", event="approved", timeout=DAY)

    await flow.run(publish)
    assert flow.status() is JobStatus.PENDING
    with Session(flow.engine) as session:
        assert session.scalars(select(Job.input).where(Job.type_name == "value")).all() == [{"stage": "picked"}]


@differs(50, "A job streams values to readers", "a row for each, committed with its place: no reader misses or repeats one")
async def test_a_cursor_commits_each_item_once(flow: Flow) -> None:
    async def stream(ctx: AttemptContext) -> None:
        for number in range(3):
            async with ctx.transaction("item", key=number) as session:
                if session is not None:
                    session.add(Job("item", number, _handler=None))
            if number == 1:
                flow.crash(ctx)

    await flow.run(stream)
    with Session(flow.engine) as session:
        assert session.scalars(select(Job.input).where(Job.type_name == "item").order_by(Job.created_at)).all() == [0, 1, 2]
