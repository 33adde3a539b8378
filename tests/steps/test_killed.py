"""`kill -9` before and after every statement that an attempt's steps send: effects exactly once, calls once more at most."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, text, update

from sa_jobqueue import Job, JobQueue, JobStatus
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import wait_until

pytestmark = pytest.mark.every_python

PROGRAM = '''
import asyncio, os, signal, sys
from datetime import timedelta
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sa_jobqueue import AttemptContext, ChildJob, EventWait, JobQueue, Worker, WorkerOptions
from sa_jobqueue.context import current_attempt
from sa_jobqueue.operations import send_event

url, calls = sys.argv[1:]
jobs = JobQueue()
seen = 0

def count(*_):
    """Die at the n-th of these moments in the n-th attempt."""
    global seen
    attempt = current_attempt()
    if attempt is not None:
        seen += 1
        if seen == attempt.attempt:
            os.kill(os.getpid(), signal.SIGKILL)

for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
    event.listen(Engine, moment, count)

def call(name):
    with open(calls, "a") as file:
        file.write(name + "\\n")
    return name

async def call_async(name):
    return call(name)

class Declined(Exception):
    pass

def refuse():
    call("refuse")
    raise Declined("no")

async def refuse_async():
    refuse()

WRITE = text("INSERT INTO effect VALUES (:name)")

@jobs.handler("child", max_attempts=100)
def child(payload: str, session: Session) -> str:
    session.execute(WRITE, {"name": "child"})
    return payload

@jobs.handler("sync", max_attempts=100)
def sync(payload: str, ctx: AttemptContext) -> list[str]:
    results = [ctx.step("a", call, "a")]
    with ctx.transaction("t") as session:
        if session is not None:
            session.execute(WRITE, {"name": "t"})
    results.append(ctx.step("b", call, "b"))
    try:
        ctx.step("refuse", refuse, catch=Declined)
    except Declined as error:
        results.append(str(error))
    results.append(ctx.run(child, "c"))
    results += ctx.all(*(ChildJob(child, name, key=name) for name in "de"))
    with ctx.transaction("sends") as session:
        if session is not None:
            session.execute(WRITE, {"name": "sends"})
            send_event(session, "sent", "yes")
    results.append(ctx.wait_for("waits", event="sent", timeout=timedelta(hours=1), output=str))
    loser = ChildJob(child, "f", key="f", delay=timedelta(hours=1))
    results.append(ctx.first("decision", EventWait("sent", event="sent", timeout=timedelta(hours=1)), loser).value)
    return results

@jobs.handler("async", max_attempts=100)
async def asynchronous(payload: str, ctx: AttemptContext) -> list[str]:
    results = [await ctx.step("a", call_async, "a")]
    async with ctx.transaction("t") as session:
        if session is not None:
            await session.execute(WRITE, {"name": "t"})
    results.append(await ctx.step("b", call_async, "b"))
    try:
        await ctx.step("refuse", refuse_async, catch=Declined)
    except Declined as error:
        results.append(str(error))
    results.append(await ctx.run(child, "c"))
    results += await ctx.all(*(ChildJob(child, name, key=name) for name in "de"))
    async with ctx.transaction("sends") as session:
        if session is not None:
            await session.execute(WRITE, {"name": "sends"})
            await session.run_sync(send_event, "sent", "yes")
    results.append(await ctx.wait_for("waits", event="sent", timeout=timedelta(hours=1), output=str))
    loser = ChildJob(child, "f", key="f", delay=timedelta(hours=1))
    winner = await ctx.first("decision", EventWait("sent", event="sent", timeout=timedelta(hours=1)), loser)
    results.append(winner.value)
    return results

Worker(jobs, create_engine(url), options=WorkerOptions(poll_interval=timedelta(milliseconds=50))).run_sync()
'''


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_effects_happen_once_whichever_statement_a_worker_dies_at(
    engine: Engine, jobs: Jobs, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    calls = tmp_path / "calls"
    calls.touch()
    queue: JobQueue[Any] = JobQueue()
    queue.handler(kind, max_attempts=100)(lambda payload: None)
    write(engine, "CREATE TABLE effect (name text)")
    try:
        (job_id,) = enqueue(engine, queue.job(kind, "x"))
        url = engine.url.render_as_string(hide_password=False)
        kills = 0
        while jobs.status(job_id) is not JobStatus.COMPLETED:
            command = [sys.executable, str(tmp_path / "program.py"), url, str(calls)]
            with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.getcwd()}) as worker:  # noqa: PTH109
                wait_until(
                    lambda worker=worker: worker.poll() is not None or jobs.status(job_id) is JobStatus.COMPLETED,  # type: ignore[misc]
                    description="the worker dies or completes the job",
                )
                worker.terminate()
                killed = worker.wait() == -signal.SIGKILL
            if killed:
                kills += 1
                rescued = {"status": JobStatus.PENDING, "leased_by": None, "scheduled_at": func.now()}
                with engine.begin() as connection:  # as a rescue does, without its wait
                    connection.execute(
                        update(Job.__table__).where(Job.status == JobStatus.RUNNING).values(rescued)  # type: ignore[arg-type]
                    )
        with engine.connect() as connection:
            assert sorted(connection.scalars(text("SELECT name FROM effect"))) == ["child"] * 3 + ["sends", "t"]
            ends = "SELECT status::text FROM job WHERE type_name = 'child' ORDER BY 1"
            assert connection.scalars(text(ends)).all() == ["cancelled"] + ["completed"] * 3
        assert jobs.get(job_id)["output"] == ["a", "b", "no", "c", "d", "e", "yes", "yes"]
        effects_made = calls.read_text().split()
        assert set(effects_made) == {"a", "b", "refuse"}
        assert len(effects_made) <= 3 + kills
        assert kills >= 16, kills  # or the moments were not seen
    finally:
        write(engine, "DROP TABLE effect")
