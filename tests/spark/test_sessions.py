"""Spark as a dependency of handlers: a session per attempt, cancelled with it, and no other session touched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, cancel_jobs
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import JobStarted
from sa_jobqueue.pipeline.spark import sessions
from sa_jobqueue.pipeline.spark.errors import SparkOnExecutorError
from sa_jobqueue.pipeline.spark.sessions import SparkSessions
from sa_jobqueue.types import CancelReason
from tests.fixtures.attempts import attempt_context
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.workers import PATIENCE, EventLog, quick, until
from tests.spark import sessions_app

FOREVER = 10_000_000
"""Milliseconds."""


@pytest.fixture
def active(spark: SparkSession) -> Callable[[], int]:
    """Give how many jobs Spark has running."""
    return lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds())


async def test_each_attempt_has_its_own_session_of_a_shared_spark(spark: SparkSession, engine: Engine, jobs: Jobs) -> None:
    ids = enqueue(engine, *(sessions_app.list_views.job(name) for name in ("a", "b")), sessions_app.count_up_to.job(1000))
    await asyncio.wait_for(Worker(sessions_app.jobs, engine, options=quick()).run_until_idle(), 120)
    first, second, count = (jobs.get(job_id)["output"] for job_id in ids)
    assert count == 1000
    assert (first["views"], second["views"]) == (["a"], ["b"])
    assert first["partitions"] == spark.conf.get("spark.sql.shuffle.partitions")
    assert first["tags"] == [f"sa_jobqueue {ids[0]} 1"]
    assert first["description"] == f"looks {ids[0]}, attempt 1"
    assert spark.range(3).count() == 3  # it is not the worker's: it was there before


async def test_an_attempt_that_times_out_is_cancelled_in_spark_and_frees_its_slot(
    engine: Engine, jobs: Jobs, active: Callable[[], int]
) -> None:
    hanging, following = enqueue(
        engine,
        sessions_app.run_slow.job(FOREVER, timeout=timedelta(seconds=3), priority=1),
        sessions_app.count_up_to.job(7),
    )
    worker = Worker(
        sessions_app.jobs,
        engine,
        options=quick(concurrency=1, cancel_timeout=timedelta(seconds=60), heartbeat_timeout=timedelta(seconds=60)),
    )
    await asyncio.wait_for(worker.run_until_idle(), 120)
    assert jobs.status(hanging) is JobStatus.DEAD
    assert [one["outcome"] for one in jobs.attempts(hanging)] == ["timed_out"]
    assert jobs.get(following)["output"] == 7
    assert not worker.has_stuck_threads
    await until(lambda: active() == 0, what="nothing runs in Spark")


@pytest.mark.parametrize("handler", [sessions_app.run_slow, sessions_app.run_slow_async], ids=lambda one: str(one.name))
async def test_cancelling_a_job_cancels_only_its_own_spark_work(
    engine: Engine, jobs: Jobs, active: Callable[[], int], handler: Any
) -> None:
    doomed, neighbour = enqueue(engine, handler.job(FOREVER), handler.job(6_000))
    worker = Worker(sessions_app.jobs, engine, options=quick(concurrency=2, cancel_timeout=timedelta(seconds=60)))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted, 2)
    await until(lambda: active() == 2, what="both run in Spark")

    def cancel() -> None:
        with Session(engine) as session, session.begin():
            cancel_jobs(session, [doomed])

    await asyncio.to_thread(cancel)
    await until(lambda: active() <= 1, what="one is cancelled in Spark")
    await until(lambda: jobs.status(neighbour) is JobStatus.COMPLETED, what="the other has completed")
    worker.stop()
    await asyncio.wait_for(run, PATIENCE)
    assert jobs.status(doomed) is JobStatus.CANCELLED
    assert jobs.attempts(neighbour) == []
    assert (active(), worker.has_stuck_threads) == (0, False)


async def test_jobs_released_by_a_stopping_worker_are_cancelled_in_spark(
    engine: Engine, jobs: Jobs, active: Callable[[], int]
) -> None:
    (job_id,) = enqueue(engine, sessions_app.run_slow.job(FOREVER))
    worker = Worker(sessions_app.jobs, engine, options=quick(cancel_timeout=timedelta(seconds=30)))
    run = asyncio.create_task(worker.run())
    await until(lambda: active() == 1, what="it runs in Spark")
    worker.stop(now=True)
    await asyncio.wait_for(run, 60)
    assert (jobs.status(job_id), active()) == (JobStatus.PENDING, 0)


class Conf:
    """The settings of a session that is not there."""

    getAll = {"a.b": "1"}  # noqa: N815, RUF012

    def isModifiable(self, name: str) -> bool:
        return True

    def get(self, name: str, default: Any) -> Any:
        return default

    def set(self, name: str, value: str) -> None: ...


class Fake:
    """A session without a Spark."""

    sparkContext: Any  # noqa: N815

    def __init__(self, parent: Fake | None = None) -> None:
        self.conf = Conf()
        self.sparkContext = type("Context", (), {"_jsc": 1, "setLocalProperty": lambda *given: None})()
        self.parent = parent
        self.stopped = False
        self.interrupted = threading.Semaphore(0)

    def newSession(self) -> Fake:
        return Fake(self)

    def addTag(self, tag: str) -> None: ...
    def removeTag(self, tag: str) -> None: ...

    def interruptAll(self) -> None:
        self.interrupted.release()
        raise OSError("Spark has gone")  # which is as good as cancelled

    def stop(self) -> None:
        self.stopped = True
        self.sparkContext._jsc = None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Give the sessions that were started, in a process that had none."""
    monkeypatch.setattr(sessions, "_present", lambda: None)
    return []


@pytest.fixture
def lending(made: list[Fake]) -> SparkSessions:
    """Give a lender of sessions without a Spark."""

    def make() -> Any:
        made.append(Fake())
        return made[-1]

    return SparkSessions(make)


def test_one_spark_is_shared_and_stopped_after_its_last_user(lending: SparkSessions, made: list[Fake]) -> None:
    lending.close()  # nothing was started: nothing to stop
    with lending.open(attempt_context()) as first, lending.open(attempt_context()) as second:
        assert len(made) == 1
        assert first is not second
        lending.close()  # a worker of the process has stopped; another one's handlers run
        assert [one.stopped for one in made] == [False]
    assert [one.stopped for one in made] == [True]
    with lending.open(attempt_context()):  # and the other one goes on
        assert len(made) == 2


def test_an_existing_spark_is_never_stopped(
    lending: SparkSessions, made: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_present", Fake)
    with lending.open(attempt_context()):
        pass
    lending.close()
    assert not made[0].stopped


def test_a_stopped_spark_is_started_again(lending: SparkSessions, made: list[Fake]) -> None:
    with lending.open(attempt_context()):
        made[0].stop()
    with lending.open(attempt_context()):
        assert len(made) == 2


def test_a_handler_that_does_not_stop_is_interrupted_repeatedly(lending: SparkSessions) -> None:
    attempt = attempt_context()
    session: Any
    with lending.open(attempt) as session:
        assert not session.interrupted.acquire(blocking=False)
        attempt.stop(CancelReason.SHUTDOWN)
        for _ in range(3):  # what it starts after the first time is found by the next
            assert session.interrupted.acquire(timeout=PATIENCE)


def test_spark_work_left_running_by_a_handler_is_interrupted(lending: SparkSessions) -> None:
    session: Any
    with lending.open(attempt_context()) as session:
        pass
    assert session.interrupted.acquire(blocking=False)


def test_a_spark_session_inside_a_spark_task_is_refused(lending: SparkSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.TaskContext.get", object)
    with pytest.raises(SparkOnExecutorError), lending.open(attempt_context()):
        pass


def test_an_application_must_provide_its_spark_before_handlers_use_it(spark: SparkSession) -> None:
    own = SparkSessions(lambda: spark)
    queue: JobQueue[Job] = JobQueue()
    queue.dependency(SparkSession, own)

    @queue.handler("asks")
    def asks(payload: None, spark: SparkSession) -> None: ...

    assert queue.registry.get("asks").provided == {"spark": own}
    with pytest.raises(InvalidOptionError, match="used by handlers above"):
        sessions_app.jobs.dependency(SparkSession, own)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    names = [thread.name for thread in threading.enumerate() if "interrupter" in thread.name]
    assert len(names) <= 1  # one may just be leaving
