"""Steps: results, failures, retries and names."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from sqlalchemy import event, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, ChildJob, Job, JobStatus
from sa_jobqueue.context import current_attempt
from sa_jobqueue.events import StepCompleted
from sa_jobqueue.operations import list_steps
from tests.conformance.behaviours import differs, has
from tests.conformance.conftest import Flow, at_once
from tests.fixtures.attempts import attempt_context
from tests.fixtures.transactions import rows
from tests.fixtures.workers import drain

SOON = timedelta(0)


class DeclinedError(Exception):
    """An error that is a result."""


@has(1, "The result of a finished step is returned without a call")
async def test_a_result_is_returned_without_a_call(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        result = await ctx.step("charge", flow.call("charge", 7))
        flow.crash(ctx)
        return result

    assert (await flow.run(order))["output"] == 7
    assert flow.called == ["charge"]


@has(2, "Only unfinished steps run in the next attempt")
async def test_only_unfinished_steps_run(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("a", flow.call("a"))
        flow.crash(ctx)
        await ctx.step("b", flow.call("b"))
        flow.crash(ctx, 2)

    await flow.run(order)
    assert flow.called == ["a", "b"]


@has(3, "A failed step records nothing")
async def test_a_failed_step_records_nothing(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.fail(DeclinedError("no")))

    await flow.run(order, max_attempts=2)
    assert (flow.steps(), flow.called) == ([], ["no", "no"])


@has(4, "A failure that the handler caught is raised again without a call")
async def test_a_declared_failure_is_raised_again(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> str:
        try:
            await ctx.step("charge", flow.fail(DeclinedError("no")), catch=DeclinedError)
        except DeclinedError as error:
            flow.crash(ctx)
            return str(error)
        return "charged"

    assert (await flow.run(order))["output"] == "no"
    assert flow.called == ["no"]


@differs(5, "Repeated names are numbered", "an error; `key=` names the rounds of a loop, in any order")
async def test_repeated_names_are_refused_and_keys_tell_them_apart(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        for number in range(2):
            await ctx.step("keyed", flow.call("keyed"), key=number)
        for _ in range(2):
            await ctx.step("same", flow.call("same"))

    await flow.run(order, max_attempts=1)
    assert flow.called == ["keyed", "keyed", "same"]
    assert flow.error().startswith("DuplicateStepError")


@differs(6, "A step is begun and completed by two calls", "a step is one call; what another process completes is an event")
async def test_what_another_process_completes_is_an_event(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> str:
        await ctx.step("begin", flow.call("begin"))
        return str(await ctx.wait_for("complete", event=f"completed:{ctx.job.id}", timeout=timedelta(days=1)))

    await flow.run(order)
    flow.send(f"completed:{flow.job_id}", "by another process")
    assert (await flow.go_on())["output"] == "by another process"


@differs(7, "A decorator makes a function a step", "a step is named where it is called, so its function stays a plain one")
async def test_a_function_is_a_step_where_it_is_called(flow: Flow) -> None:
    charge = flow.call("charge", 7)

    async def order(ctx: AttemptContext) -> list[int]:
        return [await ctx.step("first", charge), await ctx.step("second", charge), await charge()]

    assert (await flow.run(order))["output"] == [7, 7, 7]
    assert flow.steps() == ["first", "second"]


@has(8, "Code that is not passed the context reaches the steps of its job")
async def test_the_current_attempt_has_the_steps(flow: Flow) -> None:
    async def deep_inside() -> Any:
        attempt = current_attempt()
        assert attempt is not None
        return await attempt.step("charge", flow.call("charge", 7))

    async def order(payload: None) -> Any:
        return await deep_inside()

    assert (await flow.run(order))["output"] == 7
    assert flow.steps() == ["charge"]


@has(9, "A step has its own retry policy")
async def test_a_step_is_retried_within_the_attempt(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.fail(DeclinedError("no")), retry=Backoff(base=timedelta(milliseconds=1)))

    await flow.run(order, max_attempts=1)
    assert flow.called == ["no"] * 5


@has(10, "A step retries some errors only")
async def test_a_policy_sees_the_error(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        policy = lambda call, error: SOON if isinstance(error, OSError) else None  # noqa: E731
        await ctx.step("charge", flow.fail(DeclinedError("no")), retry=policy)

    await flow.run(order, max_attempts=1)
    assert flow.called == ["no"]


@has(11, "There is no delay after the last failure")
async def test_the_policy_ends_without_a_delay(flow: Flow) -> None:
    delays = [SOON, None, timedelta(days=1)]

    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.fail(DeclinedError("no")), retry=lambda call, error: delays.pop(0))

    await flow.run(order, max_attempts=1)
    assert (flow.called, delays) == (["no", "no"], [timedelta(days=1)])


@has(12, "A step has a timeout, fresh for each try")
async def test_each_call_has_its_own_timeout(flow: Flow) -> None:
    async def hang() -> str:
        flow.called.append("hang")
        if len(flow.called) < 3:
            await asyncio.Event().wait()
        return "done"

    async def order(ctx: AttemptContext) -> str:
        timeout = timedelta(milliseconds=20)
        return await ctx.step("hang", hang, timeout=timeout, retry=lambda call, error: SOON)

    assert (await flow.run(order))["output"] == "done"
    assert flow.called == ["hang"] * 3


@has(13, "Retries of a step free the slot")
async def test_a_long_delay_of_a_step_frees_the_slot(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.fail(DeclinedError("no")), retry=lambda call, error: timedelta(hours=1))

    row = await flow.run(order, max_attempts=1)
    assert (row["status"], row["max_attempts"], flow.called) == (JobStatus.PENDING, 2, ["no"])


@differs(
    14,
    "A step is called at most once",
    "at least once: its call and its record are two; `ctx.job.id` is the idempotency key",
)
async def test_a_call_that_was_not_recorded_is_repeated_with_the_same_key(flow: Flow) -> None:
    keys: list[Any] = []

    async def order(ctx: AttemptContext) -> None:
        async def charge() -> None:
            keys.append(ctx.job.id)
            flow.crash(ctx)

        await ctx.step("charge", charge)

    await flow.run(order)
    assert keys == [flow.job_id] * 2


@has(15, "Effects of a step commit together with its checkpoint")
async def test_effects_and_checkpoint_are_one_commit(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        async with ctx.transaction("reserve") as session:
            if session is not None:
                session.add(Job("reserved", None, _handler=None))
                flow.crash(ctx)
        flow.crash(ctx, 2)

    await flow.run(order)
    with Session(flow.engine) as session:
        assert session.scalar(select(func.count()).where(Job.type_name == "reserved")) == 1


@differs(
    16, "A step is retried after a serialization failure", "the attempt fails and the job is retried: a block cannot repeat"
)
async def test_a_serialization_failure_fails_the_attempt(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        async with ctx.transaction("reserve") as session:
            assert session is not None
            if ctx.attempt == 1:
                await session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"))

    row = await flow.run(order)
    assert (row["status"], row["attempt"]) == (JobStatus.COMPLETED, 2)


@has(17, "A commit whose answer was lost is found by the next attempt")
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


@has(18, "A second execution of the same job stops at its next step")
async def test_an_attempt_that_lost_its_job_records_no_step(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        async def lose_lease() -> None:
            flow.called.append("a")
            if ctx.attempt == 1:
                lost = "UPDATE job SET status = 'pending', leased_by = NULL, leased_until = NULL WHERE status = 'running'"
                await asyncio.to_thread(flow.execute, lost)

        await ctx.step("a", lose_lease)
        await ctx.step("b", flow.call("b"))

    await flow.run(order)
    assert flow.called == ["a", "a", "b"]


@has(19, "Results may be null, nested, and of declared types")
async def test_null_and_nested_results_are_recorded(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        nothing = await ctx.step("nothing", flow.call("nothing"))
        lines = await ctx.step("lines", flow.call("lines", {"lines": [{"cents": 1}]}))
        duration = await ctx.step("duration", flow.call("duration", "PT1H"), output=timedelta)
        flow.crash(ctx)
        return [nothing, lines, duration == timedelta(hours=1)]

    assert (await flow.run(order))["output"] == [None, {"lines": [{"cents": 1}]}, True]
    assert flow.called == ["nothing", "lines", "duration"]


@has(20, "A result that cannot be stored is an error that repeats no call")
async def test_a_result_that_cannot_be_stored_is_a_dead_letter(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.call("charge", object()))

    await flow.run(order)
    assert (flow.status(), flow.called) == (JobStatus.DEAD, ["charge"])


@differs(21, "Results may be large", "at most 1 MB; store data elsewhere and return a reference")
async def test_a_large_result_is_refused(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.call("charge", "x" * 2_000_000))

    await flow.run(order)
    assert flow.error().startswith("UnstorableOutputError")


@has(22, "Steps may be nested")
async def test_steps_may_be_nested(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> Any:
        async def outer() -> Any:
            return await ctx.step("inner", flow.call("inner", 7))

        return await ctx.step("outer", outer)

    assert (await flow.run(order))["output"] == 7
    assert flow.steps() == ["inner", "outer"]


@has(23, "Steps may run at the same time")
async def test_steps_run_at_the_same_time(flow: Flow) -> None:
    together = asyncio.Barrier(3)

    async def meet() -> None:
        await together.wait()

    async def order(ctx: AttemptContext) -> None:
        await asyncio.gather(*(ctx.step("meet", meet, key=number) for number in range(3)))

    assert (await flow.run(order))["status"] is JobStatus.COMPLETED


@differs(
    24, "A parallel call has a minimum of successes and tolerated failures", "errors are returned, and the handler decides"
)
async def test_the_handler_decides_about_failures(flow: Flow) -> None:
    async def part(number: int) -> int:
        if number == 1:
            raise DeclinedError("no")
        return number

    parts = flow.handler(part, max_attempts=1)

    async def order(ctx: AttemptContext) -> str:
        results = await ctx.all(*(ChildJob(parts, number, key=number) for number in range(3)), return_exceptions=True)
        failed = [result for result in results if isinstance(result, Exception)]
        return "enough" if len(failed) <= 1 else "failed"

    assert (await flow.run(order))["output"] == "enough"


@differs(25, "Map over items with a bounded concurrency", "a semaphore bounds steps, a queue's limit bounds jobs")
async def test_a_semaphore_bounds_steps(flow: Flow) -> None:
    running = [0, 0]

    async def order(ctx: AttemptContext) -> None:
        free = asyncio.Semaphore(2)

        async def work() -> None:
            async with free:
                running[0] += 1
                running[1] = max(running)
                await asyncio.sleep(0)
                running[0] -= 1

        await asyncio.gather(*(ctx.step("work", work, key=number) for number in range(6)))

    await flow.run(order)
    assert running == [0, 2]


@differs(26, "Code that is not deterministic is detected", "nothing is replayed: steps are found by name, in any order")
async def test_steps_are_found_in_any_order(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        for name in ("a", "b") if ctx.attempt == 1 else ("b", "new", "a"):
            await ctx.step(name, flow.call(name))
        flow.crash(ctx)

    assert (await flow.run(order))["status"] is JobStatus.COMPLETED
    assert flow.called == ["a", "b", "new"]


@differs(
    27, "Changed code is patched, or a job pinned to its version", "a job that has begun goes on in the new code, by names"
)
async def test_a_job_that_has_begun_goes_on_in_the_new_code(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("a", flow.call("a"))
        await ctx.sleep("rest", timedelta(days=1))

    await flow.run(order)
    deployed = Flow(flow.engine)

    async def order(ctx: AttemptContext) -> Any:  # type: ignore[no-redef]
        await ctx.step("a", deployed.call("a"))
        return await ctx.step("added", deployed.call("added", "new"))

    deployed.handler(order)
    deployed.job_id = flow.job_id
    flow.wake()
    assert (await deployed.go_on())["output"] == "new"
    assert deployed.called == ["added"]


@has(28, "A worker of an old version leaves new versions to others")
async def test_a_worker_leaves_newer_payloads(flow: Flow) -> None:
    async def order(number: int) -> None:
        flow.called.append(number)

    handler = flow.handler(order)
    with Session(flow.engine) as session, session.begin():
        newer = handler.job(7)
        newer.input_version = 2
        session.add(newer)
        session.add(handler.job(8))
    await drain(flow.queue, flow.engine)
    assert flow.called == [8]


@has(29, "Steps are listed with results and times")
async def test_steps_are_listed(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("charge", flow.call("charge", 7))

    await flow.run(order)
    with Session(flow.engine) as session:
        (step,) = list_steps(session, flow.job_id)
        assert (step.name, step.output) == ("charge", 7)
        assert step.completed_at is not None
        assert step.started_at <= step.completed_at


@differs(30, "Figures by step are an operation", "an event of each step, a span, and SQL over `job_step`")
async def test_figures_by_step_are_sql_and_events(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        for number in range(3):
            await ctx.step("row", flow.call("row"), key=number)

    flow.handler(order)
    flow.enqueue("order")
    log = await drain(flow.queue, flow.engine)
    assert len(log.of(StepCompleted)) == 3
    figures = rows(flow.engine, "SELECT name, count(*), avg(completed_at - started_at) >= '0' FROM job_step GROUP BY name")
    assert list(map(tuple, figures)) == [("row", 3, True)]


@differs(71, "Handlers in child processes have steps", "they have no connection: an error says what to do")
async def test_steps_in_a_child_process_are_refused() -> None:
    context = attempt_context()
    try:
        context.step("charge", lambda: None)
    except Exception as error:
        message = str(error)
    assert 'remove isolation="process"' in message


@has(70, "The trace goes on after a crash")
async def test_the_trace_is_the_same_in_each_attempt(flow: Flow) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def order(ctx: AttemptContext) -> None:
        flow.called.append(ctx.job.trace_context)
        flow.crash(ctx)

    flow.handler(order, retry=at_once)
    with Session(flow.engine) as session, session.begin():
        job = flow.queue.job("order")
        job.trace_context = trace
        session.add(job)
    await drain(flow.queue, flow.engine)
    assert flow.called == [trace] * 2
