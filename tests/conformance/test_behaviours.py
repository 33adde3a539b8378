"""Behaviours of the page that no test of a feature shows, and the page, which names a test for each."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobStatus, Worker
from sa_jobqueue.errors import ChildFailedError
from sa_jobqueue.events import JobCancelled
from sa_jobqueue.testing import drain as drain_test
from tests.conformance.conftest import Flow
from tests.fixtures.transactions import scalars, write
from tests.fixtures.workers import quick, working

DAY = timedelta(days=1)
PAGE = Path(__file__).with_name("README.md")


class DeclinedError(Exception):
    """An error with which a child dies."""


def test_the_page_names_a_test_for_each_behaviour() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]*) \| `(.+)::(\w+)` \|$", page, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 92))
    differing = sum(bool(instead) for _, instead, *_ in rows)
    assert f"91 behaviours: {91 - differing} are the same here, {differing} differ." in page
    assert [name for *_, path, name in rows if f"def {name}(" not in Path(path).read_text()] == []


async def test_a_serialization_failure_fails_the_attempt(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        async with ctx.transaction("reserve") as session:
            assert session is not None
            if ctx.attempt == 1:
                await session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"))

    row = await flow.run(order)
    assert (row["status"], row["attempt"]) == (JobStatus.COMPLETED, 2)


async def test_a_commit_whose_answer_was_lost_is_found(flow: Flow) -> None:
    def lose_answer(session: Session) -> None:
        raise OperationalError("COMMIT", None, Exception("connection lost"))

    async def order(ctx: AttemptContext) -> None:
        async with ctx.transaction("reserve") as session:
            if session is not None:
                flow.called.append("reserve")
                event.listen(session.sync_session, "after_commit", lose_answer)

    row = await flow.run(order)
    assert (row["status"], row["attempt"], flow.called) == (JobStatus.COMPLETED, 2, ["reserve"])


async def test_null_and_nested_results_are_recorded(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        nothing = await ctx.step("nothing", flow.call("nothing"))
        lines = await ctx.step("lines", flow.call("lines", {"lines": [{"cents": 1}]}))
        duration = await ctx.step("duration", flow.call("duration", "PT1H"), output=timedelta)
        flow.crash(ctx)
        return [nothing, lines, duration == timedelta(hours=1)]

    assert (await flow.run(order))["output"] == [None, {"lines": [{"cents": 1}]}, True]
    assert flow.called == ["nothing", "lines", "duration"]


async def test_steps_may_be_nested(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        async def outer() -> Any:
            return await ctx.step("inner", flow.call("inner", 7))

        return await ctx.step("outer", outer)

    assert (await flow.run(order))["output"] == 7
    assert sorted(scalars(flow.engine, select(Job.Step.name))) == ["inner", "outer"]


async def test_steps_are_found_in_any_order(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        for name in ("a", "b") if ctx.attempt == 1 else ("b", "new", "a"):
            await ctx.step(name, flow.call(name))
        flow.crash(ctx)

    assert (await flow.run(order))["status"] is JobStatus.COMPLETED
    assert flow.called == ["a", "b", "new"]


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


async def test_a_caught_timeout_is_followed_by_another_wait(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        try:
            await ctx.wait_for("approval", event="approved", timeout=timedelta(0))
        except TimeoutError:
            return await ctx.wait_for("decision", event="decided", timeout=DAY)

    flow.send("decided", "no")
    await flow.run(order)
    assert (await flow.go_on())["output"] == "no"


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


async def test_a_row_for_each_item_is_committed_once(flow: Flow) -> None:
    async def stream(ctx: AttemptContext) -> None:
        for number in range(3):
            async with ctx.transaction("item", key=number) as session:
                if session is not None:
                    session.add(Job("item", number, _handler=None))
            if number == 1:
                flow.crash(ctx)

    await flow.run(stream)
    stored = select(Job.input).where(Job.type_name == "item").order_by(Job.created_at)
    assert scalars(flow.engine, stored) == [0, 1, 2]


def doubling(flow: Flow) -> Any:
    """Register a handler of children; it fails for a number below zero."""

    async def double(number: int | None) -> int | None:
        flow.called.append(number)
        if number is not None and number < 0:
            raise DeclinedError(f"{number} is below zero")
        return None if number is None else 2 * number

    return flow.handler(double, max_attempts=1)


async def test_a_child_returns_null(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> list[Any]:
        return [await ctx.run(double, None, output=type(None))]

    assert (await flow.run(order))["output"] == [None]


async def test_the_error_of_a_child_is_raised_again(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> str:
        try:
            await ctx.run(double, -1)
        except ChildFailedError as error:
            await ctx.sleep("rest", timedelta(0))
            flow.crash(ctx, 3)
            return str(error.error_type).rpartition(".")[2]
        return "doubled"

    assert (await flow.run(order))["output"] == "DeclinedError"
    assert flow.called == [-1]


async def test_a_job_and_its_child_are_cancelled_at_the_deadline(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> None:
        await ctx.run(double, 7, delay=DAY)

    parent = await flow.run(order, deadline=func.now() + DAY)
    assert scalars(flow.engine, select(Job.deadline)) == [parent["deadline"]] * 2
    write(flow.engine, "UPDATE job SET deadline = now()")
    async with working(Worker(flow.queue, flow.engine, options=quick())) as log:
        await log.until(JobCancelled, 2)
    assert flow.called == []


async def test_a_child_has_its_own_fairness_key(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> Any:
        return await ctx.run(double, 1, fairness_key="acme")

    assert (await flow.run(order))["output"] == 2
    assert scalars(flow.engine, select(Job.fairness_key).order_by(Job.type_name)) == ["acme", ""]


async def test_all_of_nothing_is_nothing(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> list[Any]:
        return list(await ctx.all())

    assert (await flow.run(order))["output"] == []
