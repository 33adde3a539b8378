"""From every reachable state, whatever dies, a job ends: workers are killed between any two steps, for real."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Backoff, JobQueue, JobStatus
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.events import JobDied, JobRescued
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import write
from tests.fixtures.variants import variants
from tests.fixtures.workers import PATIENCE, Spawn, Start, until

VICTIM = """
import asyncio, os, signal
from datetime import timedelta
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session
from sa_jobqueue import JobQueue, Worker, WorkerOptions
from sa_jobqueue.worker.finish import completer
from sa_jobqueue.worker.run import executor
from tests.fixtures.variants import variants

FAULT = os.environ["FAULT"]
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def of_handler(session):  # the worker's own parts commit sessions, too
    if session.info.get("written"): die()

queue = JobQueue()

@queue.handler("with_session", max_attempts=5)
def with_session(payload: dict, session: Session):
    session.execute(text("INSERT INTO effect VALUES (:n)"), {"n": payload["n"]})
    session.info["written"] = True
    if FAULT == "in the handler": die()

@queue.handler("plain", max_attempts=5)
async def plain(payload: dict):
    if FAULT == "in the handler": die()

if FAULT == "after the claim":
    executor.Executor.start = die
if FAULT == "before the handler's commit":
    # The completion is written, the commit is not sent.
    event.listen(Session, "before_commit", of_handler)
if FAULT == "after the handler's commit":
    event.listen(Session, "after_commit", of_handler)
if FAULT == "before the flush":
    completer.Completer.flush = die
if FAULT == "after the flush":
    write = completer.Completer._write_completed
    async def written(self, *arguments):
        await write(self, *arguments)
        die()
    completer.Completer._write_completed = written

beats = {"heartbeat_interval": timedelta(milliseconds=200), "heartbeat_timeout": timedelta(seconds=10)}
options = WorkerOptions(concurrency=3, **beats)
asyncio.run(Worker(queue, create_engine(os.environ["SA_JOBQUEUE_URL"]), options=options).run())
"""

FAULTS = [
    "after the claim",
    "in the handler",
    "before the handler's commit",
    "after the handler's commit",
    "before the flush",
    "after the flush",
]


def healthy() -> JobQueue[Any]:
    """Return the victim's handlers without their faults."""
    queue = JobQueue()

    @queue.handler("with_session", max_attempts=5)
    def with_session(payload: dict[str, Any], session: Session) -> None:
        session.execute(text("INSERT INTO effect VALUES (:n)"), {"n": payload["n"]})

    @queue.handler("plain", max_attempts=5)
    async def plain(payload: dict[str, Any]) -> None: ...

    return queue


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", variants(FAULTS, default=["in the handler", "before the handler's commit", "before the flush"])
)
async def test_a_worker_killed_at_any_step_loses_no_job_and_repeats_no_write(
    engine: Engine, jobs: Jobs, spawn: Spawn, start: Start, fault: str
) -> None:
    write(engine, "CREATE TABLE effect (n int)")
    queue = healthy()
    kinds = {"after the handler's commit": ["with_session"], "before the handler's commit": ["with_session"]}
    kinds |= {"before the flush": ["plain"], "after the flush": ["plain"]}
    names = kinds.get(fault, ["with_session", "plain"])
    ids = enqueue(engine, *(queue.job(name, {"n": n}) for name in names for n in range(6)))
    victim = spawn(VICTIM, FAULT=fault)
    assert await _ended(victim) == -signal.SIGKILL, victim.stdout and victim.stdout.read()
    jobs.silence(victim.pid)
    hit = [row for row in map(jobs.get, ids) if row["attempt"] > 0]
    assert hit  # the claim had committed: the attempt is counted although the process died
    async with start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    with engine.connect() as connection:
        numbers = connection.execute(text("SELECT n FROM effect ORDER BY n")).scalars().all()
    assert numbers == ([*range(6)] if "with_session" in names else [])
    lost = {row["job_id"] for job_id in ids for row in jobs.attempts(job_id) if row["outcome"] == "lost"}
    assert lost <= {row["id"] for row in hit}


async def _ended(process: Any) -> int:
    await until(lambda: process.poll() is not None, description="the victim is dead")
    code: int = process.returncode
    return code


@pytest.mark.slow
async def test_a_job_that_kills_its_process_becomes_a_dead_letter_after_backoff(
    engine: Engine, jobs: Jobs, spawn: Spawn, start: Start
) -> None:
    queue = healthy()
    (job_id,) = enqueue(engine, queue.job("plain", {}, max_attempts=2))
    for _ in range(2):
        victim = spawn(VICTIM, FAULT="in the handler")
        assert await _ended(victim) == -signal.SIGKILL
        jobs.silence(victim.pid)
    with engine.connect() as connection:
        waited = connection.execute(
            text("SELECT j.scheduled_at >= a.ended_at FROM job j JOIN job_attempt a ON a.job_id = j.id")
        ).scalars()
        assert all(waited)
    async with start(queue) as log:
        (died,) = await log.until(JobRescued)
    assert died.died
    (dead_letter,) = jobs.dead_letters(job_id)
    assert (dead_letter["reason"], dead_letter["attempts"]) == ("lost", 2)
    assert [row["outcome"] for row in jobs.attempts(job_id)] == ["lost", "lost"]
    assert log.of(JobDied) == []


@pytest.mark.slow
async def test_a_resumed_process_is_fenced_and_continues_working(
    engine: Engine, jobs: Jobs, spawn: Spawn, start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    hold = f"while not os.path.exists({str(gate)!r}): await asyncio.sleep(0.01)"
    script = VICTIM.replace("async def plain(payload: dict):", f"async def plain(payload: dict):\n    {hold}")
    queue = healthy()
    (job_id,) = enqueue(engine, queue.job("plain", {}))
    zombie = spawn(script, FAULT="none")
    await until(lambda: jobs.status(job_id) is JobStatus.RUNNING, description="the victim has the job")
    first = jobs.get(job_id)["leased_by"]
    zombie.send_signal(signal.SIGSTOP)
    jobs.silence(zombie.pid)
    async with start(queue):
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="another worker completes the job")
    job_row = jobs.get(job_id)
    assert job_row["completed_by"] != first
    gate.touch()
    zombie.send_signal(signal.SIGCONT)
    (again,) = enqueue(engine, queue.job("plain", {}))
    await until(lambda: jobs.status(again) is JobStatus.COMPLETED, description="the zombie works again")
    assert jobs.get(again)["completed_by"] == first
    assert jobs.get(job_id) == job_row  # its late end changed nothing


@pytest.mark.long
async def test_a_handler_holding_the_gil_past_its_lease_loses_it_and_repeats_no_write(
    engine: Engine, jobs: Jobs, spawn: Spawn, start: Start, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    write(engine, "CREATE TABLE effect (n int)")
    # A call by PyDLL keeps the GIL: no thread of the process runs meanwhile, that of the heartbeat neither.
    hold = f"import ctypes; payload['n'] == 1 and ctypes.PyDLL(None).open({os.fsencode(fifo)!r}, os.O_RDONLY)"
    script = VICTIM.replace('if FAULT == "in the handler": die()', hold, 1)
    queue = healthy()
    (job_id,) = enqueue(engine, queue.job("with_session", {"n": 1}))
    victim = spawn(script, FAULT="none")
    await until(lambda: jobs.status(job_id) is JobStatus.RUNNING, description="the victim has the job")
    first = jobs.get(job_id)["leased_by"]
    async with start(queue):

        def is_completed() -> bool:
            jobs.silence(victim.pid, after=1)  # five heartbeats were missed
            return jobs.status(job_id) is JobStatus.COMPLETED

        await until(is_completed, description="another worker completes the job")
    job_row = jobs.get(job_id)
    assert (job_row["attempt"], jobs.attempts(job_id)[0]["outcome"]) == (2, "lost")
    (again,) = enqueue(engine, queue.job("with_session", {"n": 2}))
    with await asyncio.wait_for(asyncio.to_thread(fifo.open, "wb"), PATIENCE):  # only now does it continue
        await until(lambda: jobs.status(again) is JobStatus.COMPLETED, description="the victim works again")
    assert jobs.get(again)["completed_by"] == first
    assert victim.poll() is None
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM effect ORDER BY n")).scalars().all() == [1, 2]
    assert jobs.get(job_id) == job_row


async def test_jobs_of_a_claim_whose_response_was_lost_are_released(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue = healthy()
    lost: list[Any] = []
    from sa_jobqueue.worker.claim.lanes import Lanes

    take = Lanes.take

    async def lose_one(self: Lanes, *arguments: Any, **options: Any) -> tuple[list[ClaimedJob], Any]:
        if lost:
            return await take(self, *arguments, **options)
        # The claim commits, and its answer never arrives.
        jobs, _ = await take(self, *arguments, **options)
        lost.extend(jobs)
        raise ConnectionError("the answer was lost")

    ids = enqueue(engine, *(queue.job("plain", {}) for _ in range(3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lanes, "take", lose_one)
        async with start(queue):
            await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    assert len(lost) == 3
    assert {row["outcome"] for job_id in ids for row in jobs.attempts(job_id)} == {"released"}


async def test_constant_retries_do_not_starve_the_rescuer(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue = JobQueue()

    @queue.handler("endless", retry=Backoff(base=timedelta(microseconds=1)))
    async def endless(
        payload: dict[str, Any],
    ) -> None:
        if not payload.get("lost"):
            raise ValueError  # due again at once: there is never a free slot for long

    jobs.add_worker("gone:1", silent_for=60)
    lost = jobs.add(JobStatus.RUNNING, worker_id="gone:1", type_name="endless", input={"lost": True}, priority=9)
    enqueue(engine, *(endless.job({}, max_attempts=1_000_000) for _ in range(20)))
    async with start(queue, concurrency=2):
        await until(lambda: jobs.status(lost) is JobStatus.COMPLETED, description="the lost job is rescued and run")
