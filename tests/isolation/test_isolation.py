"""Handlers in processes of their own: they end as all handlers do, and what kills one costs its attempt alone."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, Job, JobQueue, JobStatus, Snooze, Worker, cancel_jobs
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError, IsolatedHandlerError, IsolationError
from sa_jobqueue.events import AttemptLost, Event, JobCompleted, JobDied, JobStarted
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.registry import Proceed
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.worker.run.isolation import app_of
from sa_jobqueue.worker.run.isolation.process import Process
from tests.fixtures import isolated, workers
from tests.fixtures.isolated import both
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain, is_running, quick, until, working

pytestmark = pytest.mark.every_python

PATIENT: dict[str, Any] = {"heartbeat_timeout": timedelta(minutes=10), "heartbeat_interval": timedelta(seconds=5)}
"""Of a worker whose leases do not run out while a test is looking."""
LONG_ENOUGH = 90.0
"""Seconds. Several interpreters are started, each importing the library, while other tests keep the machine busy."""

A_CENTURY = timedelta(days=36_500)
"""Of which a wait drawn from it is a few seconds once in 400 million times."""

TWINS: dict[str, Any] = {
    "returns": {"values": [1, 2]},
    "returns_async": {"values": [1, 2]},
    "returns_nothing": 1,
    "returns_what_is_no_json": 1,
    "raises": "é",
    "is_tried_again": 1,
    "asks_its_policy": 1,
    "snoozes": 1,
    "retries": "x",
    "discards": 1,
    "cancels": 1,
    "exits": 1,
    "is_cancelled_within": 1,
    "continues": 1,
    "has_dependency": 1,
    "logs": "logged",
}
_END = """
SELECT status, output, attempt, max_attempts, last_error, scheduled_at > now() + '30 min' AS later,
       (SELECT (reason, error_fingerprint) FROM dead_letter WHERE job_id = job.id) AS letter,
       (SELECT (type_name, input, queue, priority, max_attempts, scheduled_at > now() + '2 days')
        FROM job AS following WHERE chain_id = job.id AND chain_index = 1) AS following,
       (SELECT array_agg((a.attempt, outcome, error_fingerprint) ORDER BY a.attempt)
        FROM job_attempt a WHERE a.job_id = job.id) AS attempts
FROM job WHERE id = :id
"""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", LONG_ENOUGH)


def message(jobs_there: Jobs, job_id: Any) -> str:
    """Return the error a job was left with."""
    error = jobs_there.get(job_id)["last_error"]
    return f"{error['type'].rpartition('.')[2]}: {error['message']}"


@pytest.mark.slow
async def test_an_isolated_attempt_ends_as_it_would_in_process(
    engine: Engine, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    twins = {
        name: enqueue(engine, *(both.job(kind, isolated.Numbers(**twin) if isinstance(twin, dict) else twin)
                                for kind in (name, f"{name}_isolated")))
        for name, twin in TWINS.items()
    }  # fmt: skip
    with Session(engine) as session, session.begin():
        sources = [both.job("returns", isolated.Numbers([number])) for number in (4, 5)]
        waiting = [both.job(name, blockers=sources) for name in ("waited", "waited_isolated")]
        session.add_all(waiting)
        twins["waited"] = [job.id for job in waiting]
        # What does not fit is read in the child, and dead there as here.
        poison = [Job(type_name=name, input={"values": "no"}) for name in ("returns", "returns_isolated")]
        session.add_all(poison)
        twins["poison"] = [job.id for job in poison]
        # Of which a child knows nothing.
        upsert_queue(session, QueueSettings(name="default", retry=Backoff(base=A_CENTURY, cap=A_CENTURY)))
    await drain(both, engine, factories={"app": "tests.fixtures.isolated:both"}, **PATIENT)
    with engine.connect() as connection:
        for name, (here, there) in twins.items():
            ends = [connection.execute(text(_END), {"id": job_id}).one() for job_id in (here, there)]
            assert ends[0] == ends[1], name
            if name == "is_tried_again":
                assert ends[0].later
    assert jobs.get(twins["waited"][1])["output"] == [8, 10]
    assert jobs.get(twins["has_dependency"][1])["output"] is True
    records = {vars(record)["job_id"]: record for record in caplog.records if record.getMessage() == "it is logged"}
    here, there = (records[str(job_id)] for job_id in twins["logs"])
    fields = vars(there)
    assert (there.name, fields["job_type"], fields["job_attempt"]) == ("sa_jobqueue.job.logs_isolated", "logs_isolated", 1)
    assert (here.process, here.funcName) == (os.getpid(), there.funcName)
    assert there.process != here.process


DEATHS = {
    "aborts": "ProcessDiedError: the process of the attempt was killed by SIGABRT",
    "hogs": "MemoryLimitError: the process of the attempt was killed: it used ",
    "crashes": "ProcessDiedError: the process of the attempt was killed by SIGSEGV",
    "leaves": "ProcessDiedError: the process of the attempt ended with status 3",
    "babbles": "ProcessDiedError: the process of the attempt broke off its connection to the worker and was killed",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("aborts",), pytest.param(("hogs", "crashes", "leaves", "babbles"), marks=pytest.mark.long)], ids=" ".join
)
async def test_a_killed_child_fails_only_its_attempt_at_once_with_the_cause(
    engine: Engine, jobs: Jobs, names: tuple[str, ...]
) -> None:
    """The lease would last for ten minutes, and a neighbour runs through all of it."""
    queue = JobQueue()
    queue.include(isolated.jobs)
    over = asyncio.Event()

    @queue.handler("neighbour", priority=9)
    async def neighbour() -> None:
        await over.wait()

    fatal = {name: enqueue(engine, isolated.jobs.job(name))[0] for name in names}
    (beside,) = enqueue(engine, neighbour.job())
    fine = enqueue(engine, *(isolated.pid.job() for _ in range(3)))
    worker = Worker(queue, engine, options=quick(**PATIENT, concurrency=3), app="tests.fixtures.isolated:jobs")
    async with working(worker) as log:
        await log.until(JobDied, len(names))
        await log.until(JobCompleted, 3)
        assert jobs.status(beside) is JobStatus.RUNNING
        over.set()
    for name, job_id in fatal.items():
        assert message(jobs, job_id).startswith(DEATHS[name])
    if "aborts" in fatal:  # where it was, though it died natively
        assert "in aborts" in jobs.get(fatal["aborts"])["last_error"]["traceback"]
    if "hogs" in fatal:
        assert message(jobs, fatal["hogs"]).endswith("MiB, over its memory limit of 160 MiB")
    assert [jobs.status(job_id) for job_id in (beside, *fine)] == [JobStatus.COMPLETED] * 4
    dead_letters = {jobs.dead_letters(job_id)[0]["error_fingerprint"] for job_id in fatal.values()}
    assert len(dead_letters) == len(fatal)  # each is a group of its own


@pytest.mark.long
async def test_an_isolated_handler_holding_the_gil_does_not_block_the_workers_loop(
    engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    """It holds it until the other job, on the loop, releases it: in one process neither would ever end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    holding, releaser = enqueue(engine, isolated.holds_gil.job(str(fifo)), isolated.releases.job(str(fifo)))
    log = await drain(isolated.jobs, engine, **PATIENT)
    assert jobs.get(holding)["output"] == 1
    assert jobs.status(releaser) is JobStatus.COMPLETED
    assert {event.job_id for event in log.of(JobCompleted)} == {holding, releaser}


@pytest.mark.long
async def test_an_isolated_attempt_past_its_timeout_is_cancelled_terminated_then_killed(
    engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    heeded = tmp_path / "heeded"
    new = [isolated.heeds.job(str(heeded)), isolated.heeds_async.job(), isolated.extends.job(), isolated.pid.job()]
    job_ids = enqueue(engine, *new)
    ran_on: list[bool] = []

    def pids() -> list[int]:
        return [int(pid) for pid in (tmp_path / "started").read_text().split()]

    def note_if_running(event: Event) -> None:
        if isinstance(event, JobDied) and event.job_id == killed:
            ran_on.append(is_running(pids()[0]))

    await drain(isolated.jobs, engine, **PATIENT, concurrency=1)
    # Only who does not heed pays for the patience of the others.
    terminated, killed = enqueue(
        engine, isolated.tidies.job(str(tmp_path / "tidied")), isolated.hangs.job(str(tmp_path / "started"))
    )
    worker = Worker(isolated.jobs, engine, options=quick(**PATIENT, concurrency=1, cancel_timeout=timedelta(seconds=1)))
    worker.events.subscribe(note_if_running)
    await asyncio.wait_for(worker.run_until_idle(), LONG_ENOUGH)
    for job_id in (job_ids[0], job_ids[1], terminated, killed):
        assert message(jobs, job_id) == "AttemptTimeoutError: ran past its timeout of 0.2 s"
        assert [attempt["outcome"] for attempt in jobs.attempts(job_id)] == ["timed_out"]
    assert jobs.get(job_ids[2])["output"] is False  # it had asked for more
    assert jobs.get(job_ids[3])["output"] == int(heeded.read_text())  # who stops when asked keeps its child
    assert (tmp_path / "tidied").exists()
    assert ran_on == [False]  # its code is over before its end is written
    await until(lambda: not is_running(pids()[1]), description="the end of what the child had started")


@pytest.mark.long
async def test_an_attempt_lost_while_its_child_starts_never_runs(
    engine: Engine, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting a child takes long enough for a lease to run out; this worker does not listen, so it is not notified."""
    fifo, touched, may_start = tmp_path / "fifo", tmp_path / "touched", asyncio.Event()
    os.mkfifo(fifo)
    start, starts = Process.start, count()

    async def start_late(**arguments: Any) -> Process:
        if next(starts) > 0:
            await may_start.wait()
        return await start(**arguments)

    monkeypatch.setattr(Process, "start", start_late)
    enqueue(engine, isolated.holds_gil.job(str(fifo), priority=9))
    (waiting,) = enqueue(engine, isolated.touches.job(str(touched)))
    worker = Worker(isolated.jobs, engine, options=quick(**PATIENT, listen=False, concurrency=2))
    async with working(worker) as log:
        await log.until(JobStarted, 2)
        call(engine, cancel_jobs, [waiting])
        may_start.set()
        await log.until(AttemptLost)
        await isolated.releases(str(fifo))
    assert jobs.status(waiting) is JobStatus.CANCELLED
    assert not touched.exists()


@pytest.mark.long
async def test_a_child_is_reused_and_replaced_after_max_jobs_per_child(engine: Engine, jobs: Jobs) -> None:
    ids = enqueue(engine, *(isolated.pid.job() for _ in range(5)))
    await drain(isolated.jobs, engine, **PATIENT, concurrency=1, max_jobs_per_child=3)
    pids = [jobs.get(job_id)["output"] for job_id in ids]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 3]
    assert os.getpid() not in pids
    assert not [pid for pid in set(pids) if is_running(pid)]


@pytest.mark.slow
async def test_stopping_releases_an_isolated_attempt_and_leaves_no_process(
    engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    (job_id,) = enqueue(engine, isolated.spins.job(str(tmp_path / "pid")))
    options = quick(shutdown_timeout=timedelta(0), cancel_timeout=timedelta(milliseconds=200))
    async with working(Worker(isolated.jobs, engine, options=options)):
        await until((tmp_path / "pid").exists, description="the handler")
    assert (jobs.status(job_id), [attempt["outcome"] for attempt in jobs.attempts(job_id)]) == (
        JobStatus.PENDING,
        ["released"],
    )
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.long
async def test_middleware_sees_what_an_isolated_handler_raised(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    errors: list[BaseException] = []

    @queue.middleware
    async def watch(attempt: AttemptContext, proceed: Proceed) -> None:
        try:
            await proceed()
        except (IsolatedHandlerError, Snooze) as error:
            errors.append(error)
            raise

    for name in ("raises", "snoozes"):
        options: dict[str, Any] = {"isolation": "process", "max_attempts": 1}
        queue.handler(f"{name}_isolated", **options)(both[name].job_type.func)
    failed, snoozed = enqueue(engine, queue.job("raises_isolated", "x"), queue.job("snoozes_isolated"))
    worker = Worker(queue, engine, options=quick(), app="tests.fixtures.isolated:both")
    await asyncio.wait_for(worker.run_until_idle(), LONG_ENOUGH)
    by_kind = {type(error): error for error in errors}
    error = by_kind[IsolatedHandlerError]
    assert isinstance(error, IsolatedHandlerError)
    assert (error.kind, error.reason) == ("ValueError", "bad x")
    assert "in _raise" in error.traceback
    assert jobs.get(failed)["last_error"]["type"] == "ValueError"
    assert [attempt["outcome"] for attempt in jobs.attempts(snoozed)] == ["snoozed"]


PARTS = """
from sa_jobqueue import JobQueue

jobs, seen = JobQueue(), []


@jobs.handler("apart", isolation="process")
def apart() -> int:
    return len(seen)
"""
WHOLE = """
from contextlib import nullcontext

import included_parts
from sa_jobqueue import JobQueue


class Surrounding:
    def around_attempt(self):
        included_parts.seen.append(self)
        return nullcontext()

    def around_call(self, place, session):
        return nullcontext()


jobs = JobQueue()
jobs.include(included_parts.jobs)
jobs.registry.surround(Surrounding())
"""


@pytest.mark.slow
async def test_a_child_has_what_an_including_registry_adds(
    engine: Engine, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "included_parts.py").write_text(PARTS)
    (tmp_path / "including_whole.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    whole = importlib.import_module("including_whole")
    (job_id,) = enqueue(engine, whole.jobs.job("apart"))
    await drain(whole.jobs, engine, **PATIENT)
    assert jobs.get(job_id)["output"] == 1


@pytest.mark.slow
async def test_a_worker_whose_children_cannot_import_the_application_claims_nothing(engine: Engine, jobs: Jobs) -> None:
    (job_id,) = enqueue(engine, isolated.pid.job())
    worker = Worker(isolated.jobs, engine, options=quick(), app="tests.no_such_module:jobs")
    with pytest.raises(IsolationError, match=r"cannot import the application: ModuleNotFoundError: .*no_such_module"):
        await asyncio.wait_for(worker.run(), LONG_ENOUGH)
    assert jobs.status(job_id) is JobStatus.PENDING


def test_a_handler_that_cannot_be_isolated_is_refused_at_declaration(engine: Engine) -> None:
    queue = JobQueue()

    def refused(error: type[Exception], words: str, func: Callable[..., Any] = lambda: None, **options: Any) -> None:
        with pytest.raises(error, match=words):
            queue.handler("refused", **options)(func)

    def takes_session(session: Session) -> None: ...

    refused(InvalidHandlerError, "given no session.*continue_with a handler that takes", takes_session, isolation="process")
    refused(InvalidOptionError, 'isolation: must be "process"', isolation="thread")
    refused(InvalidOptionError, "memory_limit: .*give isolation", memory_limit=2**30)
    refused(InvalidOptionError, "memory_limit: must be at least 134,217,728 bytes", isolation="process", memory_limit=2**20)

    @queue.handler("inner", isolation="process")
    def inner() -> None: ...

    with pytest.raises(InvalidOptionError, match=r"app: the isolated handler .*inner runs in child.*: assign"):
        Worker(queue, engine)
    assert app_of(isolated.both, None) == "tests.fixtures.isolated:both"
    Worker(queue, engine, app="tests.fixtures.isolated:jobs")  # where it is looked up by its name
