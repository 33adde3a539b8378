"""Jobs: children, cancelling, repeating, deduplication, schedules, and what surrounds handlers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AttemptContext,
    Deduplicate,
    Enqueued,
    Job,
    JobStatus,
    Schedule,
    Worker,
    cancel_jobs,
    enqueue,
    operations,
)
from sa_jobqueue.events import JobCancelled
from sa_jobqueue.operations.dead_letters import DeadLetterFilter
from tests.conformance.behaviours import BEHAVIOURS, PAGE, differs, has, page
from tests.conformance.conftest import Flow
from tests.fixtures.transactions import call, scalars
from tests.fixtures.workers import quick, working

DAY = timedelta(days=1)


def shipping(flow: Flow, **options: Any) -> Any:
    async def ship(number: int) -> int:
        flow.called.append(number)
        return number * 10

    return flow.handler(ship, **options)


@has(51, "A job starts another and awaits its result, without a slot")
async def test_the_result_of_a_child_is_awaited(flow: Flow) -> None:
    ship = shipping(flow)

    async def order(ctx: AttemptContext) -> Any:
        return await ctx.run(ship, 7)

    assert (await flow.run(order))["output"] == 70


@has(52, "A child is started once")
async def test_a_child_is_started_once(flow: Flow) -> None:
    ship = shipping(flow)

    async def order(ctx: AttemptContext) -> None:
        await ctx.run(ship, 7)
        flow.crash(ctx, 1, 2)

    await flow.run(order)
    assert flow.called == [7]


@has(53, "Cancelling a job cancels its children")
async def test_cancelling_a_job_cancels_its_children(flow: Flow) -> None:
    ship = shipping(flow)

    async def order(ctx: AttemptContext) -> None:
        await ctx.run(ship, 7, delay=DAY)

    await flow.run(order)
    with Session(flow.engine) as session, session.begin():
        assert len(operations.cancel_chains(session, [flow.job_id], children=True).ids) == 2
        assert set(session.scalars(select(Job.status))) == {JobStatus.CANCELLED}


@has(54, "A job has a deadline, which its children inherit")
async def test_a_job_and_its_child_are_cancelled_at_the_deadline(flow: Flow) -> None:
    ship = shipping(flow)

    async def order(ctx: AttemptContext) -> None:
        await ctx.run(ship, 7, delay=DAY)

    flow.handler(order)
    flow.enqueue("order", deadline=func.now() + DAY)
    parent = await flow.go_on()
    with Session(flow.engine) as session:
        assert session.scalar(select(Job.deadline).where(Job.type_name == "ship")) == parent["deadline"]
    flow.execute("UPDATE job SET deadline = now()")
    async with working(Worker(flow.queue, flow.engine, options=quick())) as log:
        await log.until(JobCancelled, 2)
    assert flow.called == []


@has(55, "Cancelling is idempotent and ends the recording of steps")
async def test_a_cancelled_job_records_no_step(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        async def cancel() -> None:
            for _ in range(2):
                await asyncio.to_thread(cancelled, flow)

        await ctx.step("cancel", cancel)

    await flow.run(order)
    assert (flow.status(), flow.steps()) == (JobStatus.CANCELLED, [])


def cancelled(flow: Flow) -> int:
    return len(call(flow.engine, cancel_jobs, [flow.job_id]).ids)


@has(56, "A job that sleeps can be cancelled")
async def test_a_sleeping_job_is_cancelled(flow: Flow) -> None:
    async def rest(ctx: AttemptContext) -> None:
        await ctx.sleep("rest", DAY)

    await flow.run(rest)
    assert (cancelled(flow), flow.status()) == (1, JobStatus.CANCELLED)


async def two_steps(flow: Flow, *, fails: bool) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("a", flow.call("a"))
        await ctx.step("b", flow.call("b"))
        if fails and len(flow.called) < 3:
            raise RuntimeError("fails")

    await flow.run(order, max_attempts=1)


@has(57, "A completed or cancelled job is forked from a step")
async def test_a_completed_job_runs_again_from_a_step(flow: Flow) -> None:
    await two_steps(flow, fails=False)
    before = flow.row()
    new_id = call(flow.engine, operations.rerun_job, flow.job_id, from_step="b").id
    await flow.go_on()
    assert (flow.called, flow.status(new_id)) == (["a", "b", "b"], JobStatus.COMPLETED)
    assert flow.row() == before


@has(58, "A failed job is retried in place, with its finished steps")
async def test_a_dead_job_is_retried_in_place(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        await ctx.step("a", flow.call("a"))
        flow.crash(ctx)

    await flow.run(order, max_attempts=1)
    call(flow.engine, operations.redrive_dead_letters, where=DeadLetterFilter())
    assert (await flow.go_on())["status"] is JobStatus.COMPLETED
    assert flow.called == ["a"]


@has(59, "A job is started again as a new one")
async def test_a_new_job_is_made_like_an_old_one(flow: Flow) -> None:
    shipping(flow)
    flow.enqueue("ship", 7)
    await flow.go_on()
    call(flow.engine, operations.rerun_job, flow.job_id)
    await flow.go_on()
    assert flow.called == [7, 7]


@has(60, "A key stays taken after its job has ended")
async def test_a_key_stays_taken(flow: Flow) -> None:
    ship = shipping(flow)
    outcomes = []
    for _ in range(2):
        outcomes.append(call(flow.engine, enqueue, ship.job(7), deduplicate=Deduplicate("order 7", scope="any"))[1])
        await drain_all(flow)
    assert outcomes == [Enqueued.CREATED, Enqueued.EXISTING]
    assert flow.called == [7]


async def drain_all(flow: Flow) -> None:
    with Session(flow.engine) as session:
        flow.job_id = session.scalars(select(Job.id).limit(1)).one()
    await flow.go_on()


@has(61, "A job of an unknown type waits for a worker that knows it")
async def test_a_job_of_an_unknown_type_waits(flow: Flow) -> None:
    flow.execute("INSERT INTO job_queue (type_name, input) VALUES ('ship', '7')")
    flow.queue.handler("other")(lambda: None)
    await drain_all(flow)
    assert flow.status() is JobStatus.PENDING
    shipping(flow)
    await drain_all(flow)
    assert flow.called == [7]


@has(62, "Attempts are bounded and end in the dead letters")
async def test_attempts_are_bounded(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> None:
        raise RuntimeError("crash")

    row = await flow.run(order, max_attempts=3)
    assert (row["status"], row["attempt"]) == (JobStatus.DEAD, 3)
    with Session(flow.engine) as session:
        assert session.scalars(select(Job.DeadLetter.job_id)).all() == [flow.job_id]


@has(63, "An owner that lost its job writes no outcome")
async def test_a_lost_owner_writes_no_outcome(flow: Flow) -> None:
    async def order(ctx: AttemptContext) -> str:
        if ctx.attempt == 1:
            lost = "UPDATE job SET status = 'pending', leased_by = NULL, leased_until = NULL WHERE status = 'running'"
            await asyncio.to_thread(flow.execute, lost)
        return f"attempt {ctx.attempt}"

    assert (await flow.run(order))["output"] == "attempt 2"


@has(64, "Debounce has a deadline")
async def test_a_debounced_job_has_a_deadline(flow: Flow) -> None:
    ship = shipping(flow)
    policy = Deduplicate.debounce("order 7", max_wait=timedelta(minutes=1))
    with Session(flow.engine) as session, session.begin():
        for number in (7, 8):
            enqueue(session, ship.job(number, delay=DAY), deduplicate=policy)
    with Session(flow.engine) as session:
        job = session.scalars(select(Job)).one()
        assert job.input == 8
        assert job.scheduled_at - job.created_at <= timedelta(minutes=1)


@has(65, "Schedules are backfilled, paused and run by hand")
def test_schedules_are_backfilled_paused_and_run(flow: Flow) -> None:
    shipping(flow)
    with Session(flow.engine) as session, session.begin():
        operations.upsert_schedule(session, Schedule(name="nightly", cron="0 0 * * *", type_name="ship", input=7))
        now = session.scalar(select(func.now()))
        assert now is not None
        operations.run_schedule(session, "nightly", since=now - 3 * DAY, until=now)
        assert session.scalar(select(func.count(Job.id))) == 3
        operations.run_schedule(session, "nightly")
        operations.pause_schedules(session, ["nightly"])
        assert operations.fire_schedules(session, at=now + 2 * DAY) == []
        operations.resume_schedules(session, ["nightly"])
        assert session.scalar(select(func.count(Job.id))) == 4


@has(66, "A job that waits for another can be cancelled")
async def test_a_waiting_job_is_cancelled(flow: Flow) -> None:
    ship = shipping(flow)

    async def order(ctx: AttemptContext) -> None:
        await ctx.run(ship, 7, delay=DAY)

    await flow.run(order)
    assert (cancelled(flow), flow.status()) == (1, JobStatus.CANCELLED)


@has(67, "Jobs are found by attributes")
async def test_jobs_are_found_by_attributes(flow: Flow) -> None:
    shipping(flow)
    for number in (7, 8):
        flow.enqueue("ship", number, fairness_key=f"customer {number}")
    jobs = call(flow.engine, operations.list_jobs, matching=Job.fairness_key == "customer 7").items
    assert [job.input for job in jobs] == [7]


@differs(68, "One job is exported and imported", "its rows are read as JSON; nothing imports them")
async def test_the_rows_of_a_job_are_read_as_json(flow: Flow) -> None:
    await two_steps(flow, fails=False)
    rows = scalars(flow.engine, "SELECT to_jsonb(s) FROM job_step AS s ORDER BY completed_at")
    assert [row["name"] for row in rows] == ["a", "b"]


@has(69, "Hooks surround handlers and their jobs")
async def test_middleware_surrounds_handlers(flow: Flow) -> None:
    @flow.queue.middleware
    async def trace(ctx: AttemptContext, proceed: Any) -> None:
        flow.called.append(f"before {ctx.job.type_name}")
        await proceed()
        flow.called.append("after")

    shipping(flow)
    flow.enqueue("ship", 7)
    await flow.go_on()
    assert flow.called == ["before ship", 7, "after"]


@differs(72, "A stream such as Kafka is a source of jobs", "a consumer of yours enqueues each message once, by its key")
async def test_messages_are_enqueued_once(flow: Flow) -> None:
    ship = shipping(flow)
    for _ in range(2):  # delivered twice
        call(flow.engine, ship.enqueue_many, [1, 2, 3], deduplicate_by=str)
    await drain_all(flow)
    assert sorted(flow.called) == [1, 2, 3]


def test_the_page_lists_every_behaviour() -> None:
    from tests.conformance import test_aws_cases, test_steps, test_waits  # noqa: F401  # they register the behaviours

    assert sorted(BEHAVIOURS) == list(range(1, 92))
    assert PAGE.read_text() == page(), "python -m tests.conformance"
