"""A job that has ended runs again as a new job, with the steps before a named one; the old job does not change."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Text, cast, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from sa_jobqueue import AttemptContext, ChildJob, Job, JobMixin, JobQueue, JobStatus, cancel_jobs, operations
from sa_jobqueue.errors import IllegalTransitionError, InvalidOptionError, NotFoundError
from sa_jobqueue.operations.reruns import _like
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.policies.retry import immediately
from tests.fixtures.commands import Run, document
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain

pytestmark = pytest.mark.every_python

KINDS = ["sync", "async"]


class DeclinedError(Exception):
    """An error that a step declares."""


def shop(called: list[str], *, fails: bool = False) -> JobQueue[Any]:
    """Return handlers with every kind of step, which note their calls."""
    queue: JobQueue[Any] = JobQueue()

    def call(name: str) -> str:
        called.append(name)
        if name == "declined":
            raise DeclinedError("over the limit")
        return f"{name} {called.count(name)}"

    async def acall(name: str) -> str:
        return call(name)

    @queue.handler("ship")
    async def ship(number: int) -> int:
        called.append(f"ship {number}")
        return number + 1

    @queue.handler("sync", max_attempts=3, retry=immediately)
    def sync(payload: str, ctx: AttemptContext) -> list[Any]:
        first = ctx.step("first", call, "first")
        with pytest.raises(DeclinedError):
            ctx.step("declined", call, "declined", catch=DeclinedError)
        with ctx.transaction("write") as session:
            if session is not None:
                called.append("write")
        rows = ctx.cursor("rows", lambda position: range(position or 0, 2), position=lambda row: row + 1)
        called.extend(f"row {row}" for row in rows)
        parcels = ctx.all(*(ChildJob(ship, number, key=number) for number in range(2)))
        other = ctx.run(ship, 7, name="other")
        approved = ctx.wait_for("approval", event="approved", timeout=timedelta(days=1))
        second = ctx.step("second", call, "second")
        if fails:
            raise RuntimeError("crash")
        return [first, parcels, other, approved, second]

    @queue.handler("async")
    async def asynchronous(payload: str, ctx: AttemptContext) -> list[Any]:
        first = await ctx.step("first", acall, "first")
        return [first, await ctx.step("second", acall, "second")]

    return queue


async def ended(engine: Engine, queue: JobQueue[Any], kind: str = "sync") -> Any:
    """Run a job to its end and return its id."""
    (job_id,) = enqueue(engine, queue.job(kind, "x", queue="mails", priority=4, timeout=timedelta(hours=1)))
    call(engine, operations.send_event, "approved", "ann")
    await drain(queue, engine, queues=("mails", "default"))
    return job_id


def rerun(engine: Engine, job_id: Any, from_step: str | None = None, **options: Any) -> Any:
    return call(engine, operations.rerun_job, job_id, from_step=from_step, **options).id


@both_servers
@pytest.mark.parametrize(
    ("from_step", "repeated"),
    [
        ("second", ["second"]),
        ("approval", ["second"]),
        ("other", ["second", "ship 7"]),
        ("ship", ["second", "ship 0", "ship 1", "ship 7"]),
        ("write", ["row 0", "row 1", "second", "ship 0", "ship 1", "ship 7", "write"]),
        (None, ["declined", "first", "row 0", "row 1", "second", "ship 0", "ship 1", "ship 7", "write"]),
    ],
)
async def test_a_completed_job_runs_again_from_a_step(
    engine: Engine, jobs: Jobs, from_step: str | None, repeated: list[str]
) -> None:
    called: list[str] = []
    queue = shop(called)
    job_id = await ended(engine, queue)
    before, output = dict(jobs.get(job_id)), jobs.get(job_id)["output"]
    assert output == ["first 1", [1, 2], 8, "ann", "second 1"]
    steps = [(step.name, step.key, step.output) for step in call(engine, operations.list_steps, job_id)]
    called.clear()
    new_id = rerun(engine, job_id, from_step, by="ann")
    await drain(queue, engine, queues=("mails", "default"))
    assert sorted(called) == repeated
    new = jobs.get(new_id)
    assert (new["status"], new["chain_id"], new["queue"], new["priority"]) == (JobStatus.COMPLETED, new_id, "mails", 4)
    assert (new["input"], new["timeout"]) == ("x", timedelta(hours=1))
    assert dict(jobs.get(job_id)) == before
    assert new["output"] == output
    with Session(engine) as session:
        assert [(step.name, step.key, step.output) for step in operations.list_steps(session, job_id)] == steps
        (record,) = operations.list_audit(session)
        assert (record.operation, record.ids) == ("rerun_job", [str(new_id)])
        assert record.arguments == {"jobs": [str(job_id)]} | ({"from_step": from_step} if from_step else {})


@pytest.mark.parametrize("kind", KINDS)
async def test_the_new_job_has_as_many_attempts_as_the_old_one_had(engine: Engine, jobs: Jobs, kind: str) -> None:
    called: list[str] = []
    queue = shop(called, fails=kind == "sync")
    job_id = await ended(engine, queue, kind)
    assert jobs.status(job_id) is (JobStatus.DEAD if kind == "sync" else JobStatus.COMPLETED)
    counted = 3 if kind == "sync" else 20
    new_id = rerun(engine, job_id, "second")
    assert (jobs.get(new_id)["attempt"], jobs.get(new_id)["max_attempts"]) == (1, counted + 1)
    assert "1 attempt" not in call(engine, operations.explain_job, new_id).sentence
    called.clear()
    await drain(queue, engine, queues=("mails", "default"))
    assert set(called) == {"second"}
    assert jobs.get(new_id)["attempt"] == (counted + 1 if kind == "sync" else 2)


async def test_steps_beside_the_named_one_are_kept_if_they_completed_before_it(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()
    called: list[str] = []
    early_recorded = asyncio.Event()

    async def call(name: str) -> None:
        called.append(name)
        if name == "late":
            early_recorded.set()
        elif name == "named":
            await early_recorded.wait()

    @queue.handler("test")
    async def work(payload: str, ctx: AttemptContext) -> None:
        async def early_then_late() -> None:
            await ctx.step("early", call, "early")
            await ctx.step("late", call, "late")  # begins while the named one runs

        await asyncio.gather(ctx.step("named", call, "named"), early_then_late())

    job_id = await ended(engine, queue, "test")
    with engine.begin() as connection:  # whichever was recorded first
        connection.execute(
            update(Job.Step).where(Job.Step.name == "late").values(completed_at=text("now() + interval '1 h'"))
        )
    called.clear()
    rerun(engine, job_id, "named")
    await drain(queue, engine, queues=("mails", "default"))
    assert sorted(called) == ["late", "named"]


async def test_a_cancelled_job_that_waited_enqueues_its_open_child_again(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    called: list[str] = []
    ship: Any = shop(called)._handlers["ship"]

    @queue.handler("parent")
    def parent(payload: str, ctx: AttemptContext) -> Any:
        ctx.step("first", called.append, "first")
        return ctx.run(ship, 7)

    job_id = await ended(engine, queue, "parent")
    with Session(engine) as session, session.begin():
        with pytest.raises(IllegalTransitionError, match="only jobs that have ended"):
            operations.rerun_job(session, job_id)
        cancel_jobs(session, [job_id])
    new_id = rerun(engine, job_id, "ship")
    await drain(queue, engine, queues=("mails", "default"))
    await drain(shop(called), engine)
    await drain(queue, engine, queues=("mails", "default"))
    assert called == ["first", "ship 7", "ship 7"]  # the old one was not cancelled
    assert (jobs.get(new_id)["output"], jobs.status(job_id)) == (8, JobStatus.CANCELLED)


async def test_a_rerun_is_refused_that_cannot_have_the_results_it_needs(engine: Engine) -> None:
    job_id = await ended(engine, shop([]))
    with Session(engine) as session, session.begin():
        with pytest.raises(InvalidOptionError, match="no step of these jobs is named 'third'; they have 'approval'"):
            operations.rerun_job(session, job_id, from_step="third")
        child_ids = list(session.scalars(select(Job.id).where(Job.type_name == "ship", cast(Job.input, Text) != "7")))
        # The results of `ctx.all` are in the rows of the jobs.
        operations.delete_chains(session, child_ids)
        with pytest.raises(NotFoundError, match="their results are needed before step 'second'") as caught:
            operations.rerun_job(session, job_id, from_step="second")
        assert set(caught.value.ids) == set(child_ids)
        operations.rerun_job(session, job_id, from_step="write")  # before these
        operations.delete_chains(session, [job_id])
        with pytest.raises(NotFoundError, match="no such job"):
            operations.rerun_job(session, job_id)


async def test_a_job_whose_result_is_needed_is_not_pruned_while_it_is_copied(engine: Engine, jobs: Jobs) -> None:
    called: list[str] = []
    queue = shop(called)
    job_id = await ended(engine, queue)
    rules = RetentionRules(default=Retention(completed=timedelta(0)))

    def pruned() -> int:
        return call(engine, operations.prune, rules).jobs

    with Session(engine) as session, session.begin():
        new_id = operations.rerun_job(session, job_id, from_step="second").id
        assert pruned() == 1  # of the three children that of `ctx.run`, whose result is in the step
    assert pruned() == 1  # the old job; the two others are needed by the new one
    called.clear()
    await drain(queue, engine, queues=("mails", "default"))
    assert (called, jobs.get(new_id)["output"][1]) == (["second"], [1, 2])


def test_input_and_application_columns_are_copied_as_they_are_stored() -> None:
    class Base(DeclarativeBase):
        pass

    class TenantJob(JobMixin, Base):
        tenant: Mapped[int]
        note: Mapped[str | None]

    old = TenantJob("test", tenant=7, ordering_key="k", deduplication_key="d", _handler=None)
    old.input = {"sealed": "x" * 2**20}  # by a codec, larger than what it was given
    new = _like(old)
    assert type(new) is TenantJob
    assert (new.tenant, new.note, new.ordering_key, new.deduplication_key) == (7, None, "k", None)
    assert new.input is old.input
    assert new.id != old.id


async def test_a_redrive_from_a_later_step_keeps_the_jobs_of_an_earlier_all(engine: Engine, jobs: Jobs) -> None:
    called: list[str] = []
    job_id = await ended(engine, shop(called, fails=True))
    called.clear()
    call(engine, operations.redrive_dead_letters, where=operations.DeadLetterFilter(), from_step="second")
    await drain(shop(called), engine, queues=("mails", "default"))
    assert (called, jobs.status(job_id)) == (["second"], JobStatus.COMPLETED)


async def test_the_command_line_runs_a_job_again(engine: Engine, run: Run, jobs: Jobs) -> None:
    job_id = await ended(engine, shop([]), "async")
    new_id = document(run("jobs", "rerun", job_id, "--from-step", "second", "--json"))["job"]
    assert jobs.get(new_id)["status"] is JobStatus.PENDING
    assert [step.name for step in call(engine, operations.list_steps, jobs.get(new_id)["id"])] == ["first"]
