"""A handler waits for the results of other jobs without a slot: each is enqueued once, and no end of one is missed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker, cancel_jobs, operations
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.events import JobRescheduled
from sa_jobqueue.operations.dead_letters import DeadLetterFilter
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.testing import drain as drain_test
from sa_jobqueue.worker.run.steps import AttemptSteps, Suspended
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, scalar, scalars
from tests.fixtures.workers import ManualWorker, drain, quick, until, working

pytestmark = pytest.mark.every_python

KINDS = ["sync", "async"]


class DeclinedError(Exception):
    """An error with which a child dies."""


def shop(called: list[str], **options: Any) -> JobQueue[Any]:
    """Return handlers that ship orders by other jobs, one and several, which fail for negative numbers."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("ship", max_attempts=1)
    async def ship(order: int) -> dict[str, int]:
        called.append(f"ship {order}")
        if order < 0:
            raise DeclinedError("no address")
        return {"parcel": order + 1}

    @queue.handler("sync", retry=immediately, **options)
    def sync(order: int, ctx: AttemptContext) -> str:
        try:
            parcel = ctx.run(ship, order, catch=DeclinedError)
        except DeclinedError as error:
            parcel = str(error)
        called.append("parent")
        if called.count("parent") == 1:
            raise RuntimeError("crash")
        return str(parcel)

    @queue.handler("async", retry=immediately, **options)
    async def asynchronous(order: int, ctx: AttemptContext) -> str:
        try:
            parcel = await ctx.run(ship, order, catch=DeclinedError)
        except DeclinedError as error:
            parcel = str(error)
        called.append("parent")
        if called.count("parent") == 1:
            raise RuntimeError("crash")
        return str(parcel)

    @queue.handler("all", **options)
    async def all_of_them(orders: list[int], ctx: AttemptContext) -> list[Any]:
        results = await asyncio.gather(*(ctx.run(ship, order, key=order) for order in orders), return_exceptions=True)
        return [result if isinstance(result, dict) else type(result).__name__ for result in results]

    return queue


def children(engine: Engine) -> list[Any]:
    return scalars(engine, select(Job.id).where(Job.type_name == "ship").order_by(Job.created_at, Job.id))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("order", "output"), [(7, "{'parcel': 8}"), (-1, "no address")], ids=["completed", "dead"])
async def test_a_child_runs_once_and_its_end_is_recorded(
    engine: Engine, jobs: Jobs, kind: str, order: int, output: str
) -> None:
    called: list[str] = []
    queue = shop(called)
    (job_id,) = enqueue(engine, queue.job(kind, order))
    await drain(queue, engine)
    row = jobs.get(job_id)
    assert (row["status"], row["output"]) == (JobStatus.COMPLETED, output)
    assert called == [f"ship {order}", "parent", "parent"]
    # Waiting is not counted, the crash is; a child may have ended before its parent begins to wait.
    assert row["attempt"] in {2, 3}
    assert row["max_attempts"] == 18 + row["attempt"]


async def test_the_parent_takes_no_slot_while_it_waits(engine: Engine, jobs: Jobs) -> None:
    queue = shop([])
    ids = enqueue(engine, *(queue.job("async", order) for order in range(5)))
    await drain(queue, engine, concurrency=1)
    assert {jobs.status(job_id) for job_id in ids} == {JobStatus.COMPLETED}


async def test_children_run_at_the_same_time_and_all_results_are_returned(engine: Engine, jobs: Jobs) -> None:
    called: list[str] = []
    queue = shop(called)
    (job_id,) = enqueue(engine, queue.job("all", [1, 2, -1, 3]))
    queue_of_parent = JobQueue[Any]()
    queue_of_parent.handler("all")(shop([]).registry.get("all").func)
    await drain(queue_of_parent, engine)
    assert len(children(engine)) == 4  # before any of them has run
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == [{"parcel": 2}, {"parcel": 3}, "ChildFailedError", {"parcel": 4}]
    assert sorted(called) == ["ship -1", "ship 1", "ship 2", "ship 3"]


def parent_only(handler_of: Callable[[], JobQueue[Any]] = lambda: shop([])) -> JobQueue[Any]:
    """Return a queue whose workers run the parents only."""
    queue, complete = JobQueue[Any](), handler_of()
    for name in ("async", "sync", "all"):
        queue.handler(name, retry=immediately)(complete.registry.get(name).func)
    return queue


def end_child(engine: Engine, end: str) -> None:
    [child_id] = children(engine)
    with Session(engine) as session, session.begin():
        if end == "completed":
            operations.complete_job(session, child_id, {"parcel": 8}, model=Job)
        elif end == "cancelled":
            cancel_jobs(session, [child_id])
        else:
            session.execute(text("DELETE FROM job WHERE type_name = 'ship'"))


@pytest.mark.parametrize("end", ["completed", "cancelled", "deleted by SQL"])
@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
async def test_an_end_of_the_child_is_never_missed(engine: Engine, jobs: Jobs, end: str, when: str) -> None:
    """`before it waits`: between the enqueueing of the child and the end of the attempt, which is held up by a step."""
    queue: JobQueue[Any] = JobQueue()
    enqueued, release = asyncio.Event(), asyncio.Event()
    results: list[Any] = []

    async def hold() -> None:
        enqueued.set()
        if when == "before it waits":
            await release.wait()

    ship: Any = shop([])._handlers["ship"]

    @queue.handler("parent", retry=immediately)
    async def parent(payload: None, ctx: AttemptContext) -> Any:
        results[:] = await asyncio.gather(ctx.run(ship, 7), ctx.step("hold", hold), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results[0]

    (job_id,) = enqueue(engine, queue.job("parent", None))
    async with working(Worker(queue, engine, options=quick(poll_interval=timedelta(minutes=10)))) as log:
        await enqueued.wait()
        await until(lambda: len(children(engine)) == 1)
        if when == "while it waits":
            await log.until(JobRescheduled)
        # In a thread: the worker's transaction, which may hold the child, needs the loop to end.
        await asyncio.to_thread(end_child, engine, end)
        release.set()
        if end == "completed":
            await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED)
            assert jobs.get(job_id)["output"] == {"parcel": 8}
        else:
            await until(lambda: jobs.get(job_id)["last_error"] is not None)
            message = jobs.get(job_id)["last_error"]["message"]
            words = "was cancelled" if end == "cancelled" else "was not found: the worker's connection found no job of id "
            assert f"whose result step 'ship' waits for, {words}" in message


class Opened:
    """A store of steps on one connection, whose second transaction the test ends."""

    model = Job
    own_locks = None

    def __init__(self, queue: JobQueue[Any], connection: Connection) -> None:
        self.registry, self._connection = queue.registry, connection
        self.calls = 0

    async def call(self, work: Callable[[Any], Any], *, is_async: bool, in_transaction: bool = False) -> Any:
        if 0 < self.calls < 3:  # what enqueued the job, and the first look, are committed
            self._connection.commit()
        self.calls += 1
        return work(self._connection)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_child_that_ends_while_its_parent_begins_to_wait_wakes_it(
    engine: Engine, jobs: Jobs, manual_worker: Callable[..., ManualWorker], ends: str
) -> None:
    """The parent has looked and has not committed that it waits: the end of the child waits for it, and finds it waiting."""
    queue = shop([])
    jobs.add_worker("one:1")
    job_id = jobs.add(type_name="test")
    (row,) = manual_worker("one:1").claim()
    job = ClaimedJob(**{name: getattr(row, name) for name in ClaimedJob._fields if hasattr(row, name)})
    ended: list[bool] = []

    def complete_child() -> None:
        call(engine, operations.complete_job, children(engine)[0], {"parcel": 8}, model=Job)
        ended.append(True)

    with engine.connect() as connection:
        store: Any = Opened(queue, connection)
        attempt = AttemptContext(
            job._replace(type_name="sync"), "one:1", lambda *_: None, steps=lambda context: AttemptSteps(store, context)
        )
        with pytest.raises(Suspended):
            attempt.run(queue._handlers["ship"], 7)
        thread = threading.Thread(target=complete_child)
        thread.start()
        until_locks_are_waited_for(engine)
        assert ended == []
        getattr(connection, ends)()
    thread.join()
    assert ended == [True]
    with Session(engine) as session:
        is_due = session.scalar(select(Job.scheduled_at <= func.now()).where(Job.id == job_id))
    if ends == "commit":
        assert (jobs.status(job_id), is_due) == (JobStatus.PENDING, True)
    else:  # as when the worker dies: the next attempt finds the result
        assert jobs.status(job_id) is JobStatus.RUNNING
    assert not scalar(engine, select(func.bool_or(Job.has_waiters)))


async def test_a_recorded_death_stays_after_a_redrive_of_the_child(engine: Engine, jobs: Jobs) -> None:
    called: list[str] = []
    queue = shop(called)
    (job_id,) = enqueue(engine, queue.job("async", -1))
    await drain(queue, engine)
    with Session(engine) as session, session.begin():
        operations.redrive_dead_letters(session, where=DeadLetterFilter())
        session.execute(update(Job).where(Job.id == job_id).values(output="kept"))
    await drain(queue, engine)
    assert called.count("parent") == 2
    assert jobs.get(job_id)["output"] == "kept"


async def test_a_child_that_is_redriven_before_the_parent_looks_is_waited_for(engine: Engine, jobs: Jobs) -> None:
    queue = shop([])
    (job_id,) = enqueue(engine, queue.job("all", [-1]))
    await drain(parent_only(), engine)
    only_child = JobQueue[Any]()
    only_child.handler("ship", max_attempts=1)(shop([]).registry.get("ship").func)
    await drain(only_child, engine)  # it dies, and makes its parent due, which no worker runs
    [child_id] = children(engine)
    assert jobs.status(child_id) is JobStatus.DEAD
    with Session(engine) as session, session.begin():
        operations.redrive_dead_letters(session, where=DeadLetterFilter())
        session.execute(text("UPDATE job SET input = '1' WHERE type_name = 'ship'"))
    await drain(parent_only(), engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == [{"parcel": 2}]


@pytest.mark.parametrize("way", ["cancelled", "deleted"])
async def test_a_parent_that_ends_meanwhile_leaves_its_child(engine: Engine, jobs: Jobs, way: str) -> None:
    queue = shop([])
    (job_id,) = enqueue(engine, queue.job("async", 7))
    await drain(parent_only(), engine)
    with Session(engine) as session, session.begin():
        cancel_jobs(session, [job_id]) if way == "cancelled" else operations.delete_chains(session, [job_id])
    await drain(queue, engine)
    [child_id] = children(engine)
    assert jobs.status(child_id) is JobStatus.COMPLETED
    assert not scalar(engine, select(func.bool_or(Job.has_waiters)))


async def test_retention_spares_a_result_that_the_parent_has_not_taken(engine: Engine, jobs: Jobs) -> None:
    queue = shop([])
    (job_id,) = enqueue(engine, queue.job("all", [7]))
    await drain(parent_only(), engine)
    only_child = JobQueue[Any]()
    only_child.handler("ship")(shop([]).registry.get("ship").func)
    await drain(only_child, engine)
    rules = RetentionRules(default=Retention(completed=timedelta(0)))
    call(engine, operations.prune, rules)
    assert len(children(engine)) == 1
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == [{"parcel": 8}]
    call(engine, operations.prune, rules)
    assert children(engine) == []


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_child_of_an_ordering_key_of_its_ancestors_is_refused(engine: Engine, jobs: Jobs, depth: int) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("descend", max_attempts=1)
    async def descend(level: int, ctx: AttemptContext) -> str:
        key = "order 7" if level == depth else None
        return await ctx.run(descend, level + 1, ordering_key=key) if level <= depth else "bottom"

    (job_id,) = enqueue(engine, queue.job("descend", 1, ordering_key="order 7"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    message = jobs.get(job_id)["last_error"]["message"]
    assert "ordering_key" in message
    assert scalar(engine, select(func.count()).select_from(Job)) == depth


async def test_explain_names_the_job_that_is_waited_for(engine: Engine) -> None:
    (job_id,) = enqueue(engine, shop([]).job("async", 7))
    queue = parent_only()
    async with working(Worker(queue, engine, options=quick())) as log:
        await log.until(JobRescheduled)
        explanation = call(engine, operations.explain_job, job_id)
    assert explanation.cause is operations.Cause.WAITING_FOR_CHILD
    assert str(children(engine)[0]) in explanation.sentence


@pytest.mark.parametrize("kind", KINDS)
def test_drain_in_a_session_runs_children(engine: Engine, kind: str) -> None:
    called: list[str] = []
    queue = shop(called)
    with Session(engine) as session:
        job_id = queue._handlers[kind].enqueue(session, 7)
        drain_test(queue, session, raise_errors=False)
        job = session.get_one(Job, job_id)
        assert job.output == "{'parcel': 8}"
        assert called == ["ship 7", "parent", "parent"]
        session.rollback()
