"""Cases of the conformance suite of AWS Durable Execution that the other files do not have, and that need no replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from sa_jobqueue import AttemptContext, Backoff, ChildJob, EventWait, JobStatus, Timer
from sa_jobqueue.errors import ChildFailedError
from tests.conformance.behaviours import differs, has
from tests.conformance.conftest import Flow

pytestmark = pytest.mark.every_python
DAY = timedelta(days=1)


class DeclinedError(Exception):
    """The card was declined."""


class Approval(BaseModel):
    """The payload of an event."""

    by: str


def doubling(flow: Flow, **options: Any) -> Any:
    """Register a handler of children; it fails for a number below zero."""

    async def double(number: int | None) -> int | None:
        flow.called.append(number)
        if number is not None and number < 0:
            raise DeclinedError(f"{number} is below zero")
        return None if number is None else 2 * number

    return flow.handler(double, max_attempts=1, **options)


@differs(73, "A step has its own serializer", "its result is JSON by its type; the codec is that of the job's type")
async def test_the_type_of_a_step_is_its_serializer(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        approval = await ctx.step("approve", flow.call("approve", {"by": "ann"}), output=Approval)
        flow.crash(ctx)
        return approval.by

    assert (await flow.run(order))["output"] == "ann"
    assert flow.called == ["approve"]


@has(74, "A step logs with the identity of its job")
async def test_a_step_logs_with_its_job(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    async def order(ctx: AttemptContext) -> None:
        async def charge() -> None:
            ctx.logger.warning("charging")

        await ctx.step("charge", charge)

    await flow.run(order)
    (record,) = [record for record in caplog.records if record.getMessage().startswith("charging")]
    assert str(flow.job_id) in {str(part) for part in vars(record).values()}


@differs(75, "A step is retried by default", "its error ends the attempt, which the job's policy retries")
async def test_a_step_without_a_policy_is_called_once_an_attempt(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.fail(DeclinedError("no")))

    row = await flow.run(order, max_attempts=2)
    assert (row["status"], flow.called) == (JobStatus.DEAD, ["no", "no"])


@has(76, "Sleeps follow one another, with a step between them")
async def test_sleeps_follow_one_another(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> str:
        for number in range(2):
            await ctx.sleep("rest", timedelta(0), key=number)
            await ctx.step("work", flow.call("work"), key=number)
        return "rested"

    assert (await flow.run(order))["output"] == "rested"
    assert flow.called == ["work", "work"]


@differs(77, "The timeout of a callback runs while the job does other work", "it begins with the wait")
async def test_the_timeout_of_an_event_begins_with_the_wait(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        await ctx.sleep("rest", timedelta(0))
        return await ctx.wait_for("approval", event="approved", timeout=DAY)

    await flow.run(order)
    row = flow.row()
    assert row["status"] is JobStatus.PENDING
    assert row["scheduled_at"] - row["started_at"] > timedelta(hours=23)


@has(78, "An event that is sent while the job sleeps is there when it wakes")
async def test_an_event_waits_for_a_sleeping_job(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        await ctx.sleep("rest", timedelta(milliseconds=1))
        return await ctx.wait_for("approval", event="approved", timeout=DAY)

    flow.handler(order)
    flow.enqueue("order")
    flow.send("approved", "ann")
    row = await flow.go_on()
    if row["status"] is JobStatus.PENDING:
        row = await flow.go_on()
    assert row["output"] == "ann"


@has(79, "The payload of an event has a declared type")
async def test_the_payload_of_an_event_is_typed(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        return (await ctx.wait_for("approval", event="approved", timeout=DAY, output=Approval)).by

    flow.send("approved", {"by": "ann"})
    assert (await flow.run(order))["output"] == "ann"


@has(80, "Two events are awaited in another order than they are sent in")
@pytest.mark.parametrize("sent", [("a", "b"), ("b", "a")])
async def test_events_are_awaited_in_any_order(flow: Flow, sent: tuple[str, str]) -> None:
    async def order(ctx: AttemptContext) -> list[Any]:
        return [await ctx.wait_for(name, event=name, timeout=DAY) for name in ("b", "a")]

    flow.handler(order)
    flow.enqueue("order")
    await flow.go_on()
    for name in sent:
        flow.send(name, name)
        await flow.go_on()
    assert flow.row()["output"] == ["b", "a"]


@has(81, "A wait that timed out is caught, and the job goes on to wait for something else")
async def test_a_caught_timeout_is_followed_by_another_wait(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        try:
            await ctx.wait_for("approval", event="approved", timeout=timedelta(0))
        except TimeoutError:
            return await ctx.wait_for("decision", event="decided", timeout=DAY)

    flow.send("decided", "no")
    await flow.run(order)
    assert (await flow.go_on())["output"] == "no"


@has(82, "The submitter of a callback is called once, and again if it fails")
async def test_the_submitter_of_a_callback_is_retried(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        async def submit() -> None:
            flow.called.append("submit")
            if len(flow.called) == 1:
                raise ConnectionError("refused")

        await ctx.step("submit", submit, retry=Backoff(base=timedelta(microseconds=1)))
        return await ctx.wait_for("approval", event="approved", timeout=DAY)

    await flow.run(order)
    flow.send("approved", "ann")
    assert (await flow.go_on())["output"] == "ann"
    assert flow.called == ["submit", "submit"]


@has(83, "A child returns null")
async def test_a_child_returns_null(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> list[Any]:
        return [await ctx.run(double, None, output=type(None))]

    assert (await flow.run(order))["output"] == [None]


@has(84, "The error of a child is the same in later attempts")
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


@has(85, "A child gets the result of the one before it")
async def test_children_follow_one_another(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> Any:
        return await ctx.run(double, await ctx.run(double, 1, key=1), key=2)

    assert (await flow.run(order))["output"] == 4
    assert flow.called == [1, 2]


@has(86, "A child is of another tenant than its parent")
async def test_a_child_has_its_own_fairness_key(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> Any:
        return await ctx.run(double, 1, fairness_key="acme")

    assert (await flow.run(order))["output"] == 2


@has(87, "All of nothing ends immediately")
async def test_all_of_nothing_is_nothing(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> list[Any]:
        return list(await ctx.all())

    assert (await flow.run(order))["output"] == []


@has(88, "Results have the order of the requests, whichever ends first")
async def test_results_are_in_the_order_of_the_requests(flow: Flow) -> None:
    last_called = asyncio.Event()

    async def answer(number: int) -> int:
        if number == 3:
            last_called.set()
        await last_called.wait()
        flow.called.append(number)
        return number

    child = flow.handler(answer)

    async def order(ctx: AttemptContext) -> list[Any]:
        return list(await ctx.all(*(ChildJob(child, number, key=number) for number in (1, 2, 3))))

    assert (await flow.run(order))["output"] == [1, 2, 3]
    assert flow.called[0] == 3


@differs(89, "A failed branch stops the others", "all end; then the first error is raised, or each is among the results")
async def test_a_failed_child_does_not_stop_the_others(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> list[Any]:
        requests = (ChildJob(double, number, key=number) for number in (-1, 1))
        results = await ctx.all(*requests, return_exceptions=True)
        return [type(result).__name__ if isinstance(result, Exception) else result for result in results]

    assert (await flow.run(order))["output"] == ["ChildFailedError", 2]


@has(90, "A branch that waits does not repeat the steps of another")
async def test_a_waiting_branch_repeats_no_step_of_another(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> list[Any]:
        async def charged() -> Any:
            return await ctx.step("charge", flow.call("charge", 7))

        async def approved() -> Any:
            return await ctx.wait_for("approval", event="approved", timeout=DAY)

        return list(await asyncio.gather(charged(), approved()))

    await flow.run(order)
    flow.send("approved", "ann")
    assert (await flow.go_on())["output"] == [7, "ann"]
    assert flow.called == ["charge"]


@has(91, "Events, timers and jobs are awaited together")
async def test_several_kinds_are_awaited_together(flow: Flow) -> None:
    double = doubling(flow)

    async def order(ctx: AttemptContext) -> list[Any]:
        requests: tuple[Any, ...] = (
            ChildJob(double, 1),
            EventWait("approval", event="approved", timeout=DAY),
            Timer("rest", timedelta(0)),
        )
        return list(await ctx.all(*requests))

    flow.send("approved", "ann")
    assert (await flow.run(order))["output"][:2] == [2, "ann"]
