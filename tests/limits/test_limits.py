"""Limits hold across all workers, at every instant of the server's clock; late jobs never run; keys keep their order."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from sqlalchemy import Engine, func, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, JobStatus
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.operations import explain_job
from sa_jobqueue.operations.explaining import Cause
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, Spawn, Start, through_poolers, until

_RUNS = """
CREATE TABLE run (id bigint GENERATED ALWAYS AS IDENTITY, job_id uuid, attempt int, key text,
  began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)
"""
_BEGIN = "INSERT INTO run (job_id, attempt, key) VALUES (:job_id, :attempt, :key) RETURNING id"
_END = "UPDATE run SET ended = clock_timestamp() WHERE id = :id"
# A killed process never records its end; the run ended when its job was rescued.
_AT_ONCE = """
SELECT max(n) FROM (SELECT count(*) AS n FROM run AS one JOIN run AS other
  ON one.began >= other.began AND one.began < coalesce(other.ended, other.began) GROUP BY one.id) AS counted
"""
VICTIM = f"""
import asyncio, os
from datetime import timedelta
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from sa_jobqueue import JobQueue, Worker, WorkerOptions
from sa_jobqueue.context import AttemptContext

engine = create_engine(os.environ["SA_JOBQUEUE_URL"], poolclass=NullPool)
queue = JobQueue()

@queue.handler("recorded")
def recorded(payload: dict, ctx: AttemptContext) -> None:
    with engine.connect() as connection:
        given = {{"job_id": ctx.job.id, "attempt": ctx.attempt, "key": payload.get("key")}}
        number = connection.execute(text({_BEGIN!r}), given).scalar_one()
        connection.commit()
        connection.execute(text("SELECT pg_sleep(0.02)"))
        connection.execute(text({_END!r}), {{"id": number}})
        connection.commit()

options = WorkerOptions(
    name="victim", concurrency=6, poll_interval=timedelta(milliseconds=100), heartbeat_interval=timedelta(milliseconds=200),
    heartbeat_timeout=timedelta(seconds=10),
)
asyncio.run(Worker(queue, create_engine(os.environ["SA_JOBQUEUE_URL"]), options=options).run())
"""


def execute(engine: Engine, statement: str, **parameters: Any) -> None:
    write(engine, statement, parameters)


def scalar(engine: Engine, statement: str, **parameters: Any) -> Any:
    with engine.begin() as connection:
        return connection.execute(text(statement), parameters).scalar()


@pytest.mark.slow
@own_database
@through_poolers
async def test_a_queue_limit_applies_across_workers_when_one_is_killed(
    engine: Engine, jobs: Jobs, spawn: Spawn, start: Start
) -> None:
    execute(engine, _RUNS)
    execute(engine, "INSERT INTO queue (name, global_concurrency) VALUES ('default', 3)")
    queue = JobQueue()

    @queue.handler("recorded")
    async def recorded(payload: dict[str, Any], ctx: AttemptContext) -> None:
        number = await asyncio.to_thread(scalar, engine, _BEGIN, job_id=ctx.job.id, attempt=ctx.attempt, key=None)
        await asyncio.to_thread(execute, engine, _END, id=number)

    for number in range(120):
        jobs.add(type_name="recorded", input={"number": number})
    victim = spawn(VICTIM)
    await until(lambda: scalar(engine, "SELECT count(*) FROM run") > 0, description="the victim works")
    async with start(queue), start(queue):
        await until(lambda: scalar(engine, "SELECT count(*) FROM run") > 15, description="all work")
        victim.send_signal(signal.SIGKILL)
        await asyncio.to_thread(victim.wait, PATIENCE)
        jobs.silence(victim.pid)
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    # Without the lock of the queue's row two claims count the same room: 6 and more at once.
    assert scalar(engine, _AT_ONCE) <= 3
    assert scalar(engine, "SELECT max(n) FROM (SELECT count(*) AS n FROM run GROUP BY job_id) AS counted") <= 2


@own_database
async def test_a_job_types_rate_limit_applies_across_workers(engine: Engine, jobs: Jobs, start: Start) -> None:
    execute(
        engine,
        "INSERT INTO job_type (type_name, rate_limit, rate_period, rate_burst) VALUES ('test', 20, interval '1 second', 5)",
    )
    for _ in range(25):
        jobs.add()
    queue = JobQueue()

    @queue.handler("test")
    async def work() -> None:
        pass

    async with start(queue), start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    # In no stretch of time more than the burst and what the rate lets through in it.
    excess = scalar(
        engine,
        "SELECT max(n - 5 - 20 * extract(epoch FROM later - earlier)) FROM (SELECT one.started_at AS earlier,"
        " other.started_at AS later, (SELECT count(*) FROM job WHERE started_at BETWEEN one.started_at AND other.started_at)"
        " AS n FROM job AS one JOIN job AS other ON other.started_at >= one.started_at) AS stretches",
    )
    assert excess <= 1


async def test_an_expired_job_is_cancelled_and_never_runs(engine: Engine, jobs: Jobs, start: Start) -> None:
    ran: list[str] = []
    queue = JobQueue()

    @queue.handler("test")
    async def work(payload: str) -> None:
        ran.append(payload)

    late = jobs.add(input="late")
    execute(engine, "UPDATE job SET expires_at = now() - interval '1 second'")
    in_time = jobs.add(input="in time")
    execute(engine, "UPDATE job SET expires_at = now() + interval '1 hour' WHERE id = :id", id=in_time)
    async with start(queue):
        await until(lambda: jobs.status(late) is JobStatus.CANCELLED, description="it is cancelled")
        await until(lambda: jobs.status(in_time) is JobStatus.COMPLETED, description="the other one completes")
    assert ran == ["in time"]
    assert jobs.get(late)["last_error"]["type"] == "Expired"
    assert jobs.get(late)["chain_completed_at"] is not None


@pytest.mark.slow
@own_database
async def test_jobs_of_an_ordering_key_run_in_order_and_a_retry_blocks_the_key(jobs: Jobs, start: Start) -> None:
    runs: list[tuple[str, int]] = []
    running: set[str] = set()
    queue = JobQueue()

    @queue.handler("test")
    async def work(payload: dict[str, Any]) -> None:
        key = payload["key"]
        assert key not in running
        running.add(key)
        runs.append((key, payload["n"]))
        await asyncio.sleep(0)
        running.discard(key)
        if key == "a" and payload["n"] == 2 and runs.count(("a", 2)) == 1:
            raise ValueError("once")

    for number in range(10):
        for key in "abc":
            jobs.add(input={"key": key, "n": number}, ordering_key=key)
    async with start(queue), start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    for key in "bc":
        assert [number for name, number in runs if name == key] == list(range(10))
    assert [number for name, number in runs if name == "a"] == [0, 1, 2, *range(2, 10)]


def test_explain_names_the_ordering_key_limit_or_expiry_that_holds_a_job_back(
    engine: Engine, jobs: Jobs, manual_worker: Any
) -> None:
    jobs.add_worker("free:1", concurrency=5)
    first, second = jobs.add(ordering_key="k", due_in=-5), jobs.add(ordering_key="k", due_in=-5)
    with Session(engine) as session:
        explanation = explain_job(session, second)
        assert (explanation.cause, explanation.evidence["waits_for"]) == (Cause.WAITING_FOR_ORDERING_KEY, first)
        execute(engine, "INSERT INTO queue (name, global_concurrency) VALUES ('default', 1)")
        assert len(manual_worker("other:1").claim()) == 1
        assert explain_job(session, jobs.add()).cause is Cause.LIMITED
        late = jobs.add(expires_at=func.now())
        assert explain_job(session, late).cause is Cause.EXPIRED
