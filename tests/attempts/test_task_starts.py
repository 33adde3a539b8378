"""When attempts begin, end and follow each other, whatever makes the loop's tasks: the same with every supported Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker
from sa_jobqueue.context import current_attempt
from sa_jobqueue.events import AttemptLost, JobCompleted, JobStarted, WorkerStopped
from sa_jobqueue.registry import Proceed
from sa_jobqueue.worker.run.executor import Executor
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, Start, quick, until, working

pytestmark = pytest.mark.every_python

RESCUED = "UPDATE job SET status = 'pending', leased_by = NULL, leased_until = NULL WHERE id = ANY (:ids)"
"""As after a rescue that the worker was not notified of."""
NOTIFY = text("SELECT pg_notify(:channel, :payload)")


def lazy(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task as the loop does."""
    return asyncio.Task(coroutine, loop=loop, **options)


FACTORIES: dict[str, Any] = {"none": None, "lazy": lazy}
if hasattr(asyncio, "eager_task_factory"):  # since Python 3.12
    FACTORIES["eager"] = asyncio.eager_task_factory

with_every_factory = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


@contextmanager
def making_tasks(factory: Any) -> Iterator[None]:
    """Have the loop make its tasks by a factory, for the length of a block."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        yield
    finally:
        loop.set_task_factory(None)


class Order:
    """What handlers of two attempts record: the first waits until it is stopped, the second ends at once."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.began = asyncio.Event()

    @contextmanager
    def recorded(self, ctx: AttemptContext) -> Iterator[None]:
        self.steps.append(f"{ctx.attempt} begins")
        self.began.set()
        try:
            yield
        finally:
            self.steps.append(f"{ctx.attempt} ends")


def _coroutine(queue: JobQueue[Any], order: Order) -> None:
    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        with order.recorded(ctx):
            if ctx.attempt == 1:
                await asyncio.Event().wait()


def _slow_to_clean_up(queue: JobQueue[Any], order: Order) -> None:
    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        with order.recorded(ctx):
            try:
                if ctx.attempt == 1:
                    await asyncio.Event().wait()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)


def _in_a_task_group(queue: JobQueue[Any], order: Order) -> None:
    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        async def child() -> None:
            with order.recorded(ctx):
                if ctx.attempt == 1:
                    await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE):
            await group.create_task(child())


def _in_a_thread(queue: JobQueue[Any], order: Order) -> None:
    loop = asyncio.get_running_loop()
    began = order.began

    @queue.handler("test")
    def test(ctx: AttemptContext) -> None:
        order.steps.append(f"{ctx.attempt} begins")
        loop.call_soon_threadsafe(began.set)
        if ctx.attempt == 1:
            assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        order.steps.append(f"{ctx.attempt} ends")


def _within_middleware(queue: JobQueue[Any], order: Order) -> None:
    @queue.middleware
    async def cleans_up(ctx: AttemptContext, proceed: Proceed) -> None:
        with order.recorded(ctx):
            try:
                await proceed()
            finally:
                await asyncio.sleep(0)

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            await asyncio.Event().wait()


def _with_a_session(queue: JobQueue[Any], order: Order) -> None:
    @queue.handler("test")
    def test(ctx: AttemptContext, session: Session) -> None:
        order.steps.append(f"{ctx.attempt} begins")
        session.execute(text("SELECT 1"))
        if ctx.attempt == 1:
            loop.call_soon_threadsafe(order.began.set)
            assert ctx.wait_cancelled(timedelta(seconds=PATIENCE))
        order.steps.append(f"{ctx.attempt} ends")

    loop = asyncio.get_running_loop()


HANDLERS: dict[str, Callable[[JobQueue[Any], Order], None]] = {
    "coroutine": _coroutine,
    "slow to clean up": _slow_to_clean_up,
    "in a task group": _in_a_task_group,
    "in a thread": _in_a_thread,
    "within middleware": _within_middleware,
    "with a session": _with_a_session,
}


@pytest.mark.slow
@with_every_factory
@pytest.mark.parametrize("define", HANDLERS.values(), ids=HANDLERS)
async def test_an_earlier_attempt_ends_before_its_own_worker_begins_the_next(
    engine: Engine, jobs: Jobs, start: Start, factory: Any, define: Callable[[JobQueue[Any], Order], None]
) -> None:
    queue: JobQueue[Any] = JobQueue()
    order = Order()
    define(queue, order)
    job_id = jobs.add()
    with making_tasks(factory):
        async with start(queue, listen=False) as log:
            await asyncio.wait_for(order.began.wait(), PATIENCE)
            write(engine, RESCUED, {"ids": [job_id]})
            await log.until(JobCompleted)
    assert order.steps == ["1 begins", "1 ends", "2 begins", "2 ends"]
    assert [event.attempt for event in log.of(JobCompleted)] == [2]


async def test_an_earlier_attempt_that_does_not_return_is_left_behind(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue: JobQueue[Any] = JobQueue()
    began, release = asyncio.Event(), asyncio.Event()

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        began.set()
        while ctx.attempt == 1 and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    job_id = jobs.add()
    async with start(queue, listen=False, cancel_timeout=timedelta(0)) as log:
        await asyncio.wait_for(began.wait(), PATIENCE)
        write(engine, RESCUED, {"ids": [job_id]})
        await log.until(JobCompleted)
        release.set()
        await log.until(AttemptLost)
    assert [(event.job_id, event.attempt) for event in log.of(JobCompleted)] == [(job_id, 2)]


async def test_an_attempt_that_waits_for_an_earlier_one_is_not_lost_with_it(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    release = asyncio.Event()
    cleaning: list[Any] = []

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.append(ctx.job.id)
                await release.wait()

    @queue.handler("other")
    async def other() -> None:
        await asyncio.Event().wait()

    ids, other_id = jobs.add_many(8), jobs.add(type_name="other")
    async with working(Worker(queue, engine, options=quick(concurrency=20, cancel_timeout=timedelta(minutes=1)))) as log:
        await log.until(JobStarted, 9)
        with engine.begin() as connection:
            connection.execute(text(RESCUED), {"ids": ids})
            connection.execute(text("UPDATE job SET leased_by = 'another' WHERE id = :id"), {"id": other_id})
        await until(lambda: len(cleaning) == 8)
        await until(lambda: all(jobs.get(job_id)["attempt"] == 2 for job_id in ids))
        with engine.begin() as connection:
            for job_id in (*ids, other_id):
                connection.execute(NOTIFY, {"channel": Job.__jobqueue__.channel("lost"), "payload": str(job_id)})
        await log.until(AttemptLost)  # of the other job: the answer about all
        release.set()
        await log.until(JobCompleted, 8)
    assert [event.attempt for event in log.of(AttemptLost)] == [1] * 9
    assert sorted(event.job_id for event in log.of(JobCompleted)) == sorted(ids)


async def test_a_job_whose_task_is_cancelled_before_its_first_step_is_released(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()
    begun: list[int] = []

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        begun.append(ctx.attempt)

    def cancelling(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = lazy(loop, coroutine, **options)
        if coroutine.__qualname__ == "Executor._run" and not cancelled:
            cancelled.append(task)
            task.cancel()
        return task

    cancelled: list[asyncio.Task[Any]] = []
    job_id = jobs.add()
    with making_tasks(cancelling):
        async with working(Worker(queue, engine, options=quick(concurrency=1))) as log:
            await log.until(JobCompleted)
    assert begun == [2]
    assert [attempt["outcome"] for attempt in jobs.attempts(job_id)] == ["released"]
    assert log.of(WorkerStopped)[0].released == 1


@with_every_factory
async def test_no_handler_begins_while_the_jobs_of_a_claim_are_started(engine: Engine, jobs: Jobs, factory: Any) -> None:
    """Their tasks are made first, each in a context of its own."""
    queue: JobQueue[Any] = JobQueue()
    running: list[int] = []
    was_started: list[bool] = []

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        running.append(worker.running)
        task = asyncio.current_task()
        was_started.append(task is not None and task.get_name() == "test" and current_attempt() is ctx)

    jobs.add_many(3)
    worker = Worker(queue, engine, options=quick(concurrency=3))
    with making_tasks(factory):
        async with working(worker) as log:
            await log.until(JobCompleted, 3)
    assert running[0] == 3
    assert was_started == [True, True, True]


@with_every_factory
async def test_timeouts_and_groups_of_tasks_work_from_a_handlers_first_line(
    engine: Engine, jobs: Jobs, start: Start, factory: Any
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("timeout", max_attempts=1)
    async def timeout(ctx: AttemptContext) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    @queue.handler("group", max_attempts=1)
    async def group(ctx: AttemptContext) -> None:
        async def fails() -> None:
            mine = current_attempt()
            raise ValueError(mine and mine.job.type_name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
            await asyncio.Event().wait()

    @queue.handler("deadline", max_attempts=1, timeout=timedelta(milliseconds=100))
    async def deadline(ctx: AttemptContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait())

    new = [Job(type_name=name) for name in ("timeout", "group", "deadline")]
    ids = enqueue(engine, *new)
    with making_tasks(factory):
        await Worker(queue, engine, options=quick()).run_until_idle()
    errors = [jobs.get(job_id)["last_error"]["type"] for job_id in ids]
    assert errors == ["TimeoutError", "ExceptionGroup", "sa_jobqueue.errors.AttemptTimeoutError"]
    assert {jobs.status(job_id) for job_id in ids} == {JobStatus.DEAD}


async def test_the_watch_of_the_loop_can_ask_about_a_task_while_an_attempt_begins(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may ask before the attempt's task exists; here the factory of tasks asks at that moment."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("test")
    async def test(payload: str) -> None: ...

    executors: list[Executor] = []
    start = Executor.start

    def recorded_start(self: Executor, job: Any) -> None:
        executors.append(self)
        start(self, job)

    answers: list[object] = []

    def asking(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = lazy(loop, coroutine, **options)
        for executor in executors:
            try:
                answers.append(executor.job_in(task)[0])
            except AttributeError as error:
                answers.append(error)
        return task

    monkeypatch.setattr(Executor, "start", recorded_start)
    (job_id,) = enqueue(engine, queue.job("test", "x"))
    with making_tasks(asking):
        async with working(Worker(queue, engine, options=quick())) as log:
            await log.until(JobCompleted)
    assert jobs.status(job_id) is JobStatus.COMPLETED
    assert answers
    assert not [answer for answer in answers if isinstance(answer, AttributeError)]
