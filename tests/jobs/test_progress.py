"""Progress: a handler's reports are written by its worker's heartbeat, and only its own attempt's is ever shown."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, Job, JobQueue, JobStatus, Worker, aio, operations, wait_chain
from sa_jobqueue.cli import main
from sa_jobqueue.errors import InvalidOptionError, NotFoundError
from sa_jobqueue.events import JobCompleted
from sa_jobqueue.ids import uuid7
from sa_jobqueue.statements import leases
from sa_jobqueue.types import Progress
from sa_jobqueue.worker.background.heartbeat import Heartbeat
from tests.fixtures import isolated
from tests.fixtures.attempts import attempt_context
from tests.fixtures.jobs import WORKER, Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import PATIENCE, ManualWorker, Spawn, Start, quick, shared, until, wait_until, working
from tests.statements.cases import heartbeat_parameters

REPORTING = """
import asyncio, os, time
from datetime import timedelta
from sqlalchemy import create_engine
from sa_jobqueue import AttemptContext, JobQueue, Worker, WorkerOptions
jobs = JobQueue()

@jobs.handler("test")
def test(ctx: AttemptContext):
    for n in ctx.track(range(10**9)):
        time.sleep(0.01)

options = WorkerOptions(heartbeat_interval=timedelta(milliseconds=100), heartbeat_timeout=timedelta(seconds=10))
asyncio.run(Worker(jobs, create_engine(os.environ["SA_JOBQUEUE_URL"]), options=options).run())
"""


def progress_of(engine: Engine, job_id: Any) -> Progress | None:
    return call(engine, operations.get_progress, job_id)


def report(done_units: float, attempt: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "done": done_units, "total": None, "message": None}


async def test_handlers_report_progress_and_a_retry_starts_without_it(
    engine: Engine, async_engine: AsyncEngine, start: Start, database_url: str
) -> None:
    jobs, release, again = JobQueue(), threading.Event(), threading.Event()

    @jobs.handler("resize", retry=Backoff(base=timedelta(milliseconds=1), cap=timedelta(milliseconds=1)))
    def resize(ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            ctx.progress(40, 100, message="resizing\x00 \ud800")  # no text that the database can store
            release.wait(PATIENCE)
            raise OSError
        again.set()
        ctx.wait_cancelled(timedelta(seconds=PATIENCE))

    @jobs.handler("walk")
    async def walk(ctx: AttemptContext) -> None:
        async def rows() -> AsyncIterator[int]:
            for n in range(3):
                yield n

        async for _ in ctx.track(rows(), message="walking"):
            pass
        await asyncio.Event().wait()

    resized, walked = enqueue(engine, resize.job(), walk.job())
    async with start(jobs, shutdown_timeout=timedelta(0)):
        await until(lambda: progress_of(engine, resized) is not None, description="the report")
        progress = progress_of(engine, resized)
        assert progress is not None
        assert (progress.done, progress.total, progress.attempt, progress.fraction) == (40, 100, 1, 0.4)
        assert str(progress) == r"40 of 100 (40%): resizing\x00 \ud800"
        await until(lambda: str(progress_of(engine, walked)) == "3: walking", description="the other report")
        async with AsyncSession(async_engine) as async_session:
            walking = await aio.get_progress(async_session, walked)
        assert walking is not None
        assert (walking.done, walking.total, walking.fraction) == (3, None, None)

        def show(*more: str) -> str:
            environment = {"SA_JOBQUEUE_URL": database_url}
            return CliRunner().invoke(main, ["jobs", "show", str(resized), *more], env=environment).stdout

        assert "progress: 40 of 100 (40%): resizing" in await asyncio.to_thread(show)
        assert json.loads(await asyncio.to_thread(show, "--json"))["progress"]["total"] == 100

        release.set()
        assert await asyncio.to_thread(again.wait, PATIENCE)
        assert progress_of(engine, resized) is None
        assert json.loads(await asyncio.to_thread(show, "--json"))["progress"] is None
    assert progress_of(engine, walked) is None  # it was released
    with Session(engine) as session, pytest.raises(NotFoundError):
        operations.get_progress(session, uuid7())


async def test_wait_chain_calls_on_progress_with_each_new_report(
    engine: Engine, async_engine: AsyncEngine, start: Start
) -> None:
    jobs, steps = JobQueue(), [asyncio.Event() for _ in range(2)]

    @jobs.handler("walk")
    async def walk(ctx: AttemptContext) -> str:
        ctx.progress(0, 2)
        await steps[0].wait()
        ctx.progress(1, 2, message="half")
        await steps[1].wait()
        return "there"

    loop = asyncio.get_running_loop()
    reports: dict[str, list[str]] = {"sync": [], "async": []}

    def note(kind: str) -> Any:
        def call(progress: Progress) -> None:
            reports[kind].append(str(progress))
            if all(len(reports_of_one) == len(reports[kind]) for reports_of_one in reports.values()):
                loop.call_soon_threadsafe(steps[len(reports[kind]) - 1].set)

        return call

    (chain_id,) = enqueue(engine, walk.job())
    options: dict[str, Any] = {"timeout": timedelta(seconds=PATIENCE), "poll_interval": timedelta(milliseconds=50)}
    async with start(jobs):
        results = await asyncio.gather(
            asyncio.to_thread(lambda: wait_chain(engine, chain_id, on_progress=note("sync"), **options)),
            aio.wait_chain(async_engine, chain_id, on_progress=note("async"), **options),
        )
    assert [result.output for result in results] == ["there", "there"]
    expected = ["0 of 2 (0%)", "1 of 2 (50%): half"]  # each once, though heartbeats write it many times
    assert reports == {"sync": expected, "async": expected}


def test_the_last_report_of_a_killed_worker_is_shown_until_the_rescue(
    engine: Engine, jobs: Jobs, spawn: Spawn, manual_worker: Any
) -> None:
    job_id = jobs.add()
    process = spawn(REPORTING)
    wait_until(lambda: (progress_of(engine, job_id) or Progress(0, attempt=0, as_of=None)).done > 0, description="a report")  # type: ignore[arg-type]
    process.kill()
    process.wait()
    last = progress_of(engine, job_id)
    assert last is not None
    assert progress_of(engine, job_id) == last  # with its time
    write(engine, "UPDATE worker SET heartbeat_at = now() - interval '1 hour'")
    second_worker: ManualWorker = manual_worker()
    assert [row.id for row in second_worker.rescue()] == [job_id]
    assert progress_of(engine, job_id) is None


def test_reports_of_an_attempt_that_lost_its_lease_are_never_shown(engine: Engine, jobs: Jobs, manual_worker: Any) -> None:
    job_id = jobs.add(JobStatus.RUNNING, attempt=1, started_at=text("now()"))
    write(engine, leases.heartbeat(Job), heartbeat_parameters(progress={str(job_id): report(5)}))
    progress = progress_of(engine, job_id)
    assert progress is not None
    assert progress.done == 5
    # Rescued, and claimed by another worker; the first one continues to report.
    write(engine, "UPDATE worker SET heartbeat_at = now() - interval '1 hour'")
    second_worker: ManualWorker = manual_worker("other:1")
    second_worker.rescue()
    write(engine, "UPDATE job_queue SET scheduled_at = now()")
    assert [row.id for row in second_worker.claim()] == [job_id]
    for attempt in (1, 2):
        write(engine, leases.heartbeat(Job), heartbeat_parameters(progress={str(job_id): report(6, attempt)}))
        assert progress_of(engine, job_id) is None
    # Nor does the worker that has it now speak for its earlier attempt.
    write(engine, leases.heartbeat(Job), heartbeat_parameters("other:1", progress={str(job_id): report(7, 1)}))
    assert progress_of(engine, job_id) is None
    write(engine, leases.heartbeat(Job), heartbeat_parameters("other:1", progress={str(job_id): report(8, 2)}))
    assert progress_of(engine, job_id) is not None


def test_a_thousand_reports_cost_no_statement_and_no_row_version(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    job_id = jobs.add(JobStatus.RUNNING, attempt=1, worker_id="tester:1")
    context, now = attempt_context(), [0.0]
    heartbeat = Heartbeat(
        shared(async_engine),
        engine.execution_options(isolation_level="AUTOCOMMIT"),
        on_endangered=lambda silent: None,
        report=lambda: {"progress": {str(job_id): report(context.reported[0])} if context.reported else None},
        clock=lambda: now[0],
    )
    statements: list[str] = []
    heartbeat.send()
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with engine.connect() as connection:
        version = connection.execute(text("SELECT xmin, ctid FROM job")).one()
    for second in range(10):
        now[0] = 5.0 * second
        for _ in context.track(range(100)):
            pass
        heartbeat.send()
    assert len([statement for statement in statements if "INSERT INTO worker" in statement]) == 10
    with engine.connect() as connection:
        assert connection.execute(text("SELECT xmin, ctid FROM job")).one() == version
    progress = progress_of(engine, job_id)
    assert progress is not None
    assert progress.done == 100
    heartbeat.stop()


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("done", {"done": -1}),
        ("done", {"done": True}),
        ("done", {"done": float("nan")}),
        ("done", {"done": "7"}),
        ("done", {"done": 11, "total": 10}),
        ("done", {"done": 10**400}),
        ("total", {"done": 1, "total": float("inf")}),
        ("total", {"done": 1, "total": 2**63}),
        ("message", {"done": 1, "message": "x" * 201}),
        ("message", {"done": 1, "message": b"x"}),
    ],
)
def test_an_invalid_progress_report_is_refused_by_field(field: str, arguments: dict[str, Any]) -> None:
    context = attempt_context()
    with pytest.raises(InvalidOptionError, match=field):
        context.progress(**arguments)
    assert context.reported is None


def test_track_counts_an_item_when_the_next_one_is_requested() -> None:
    context = attempt_context()
    rows_and_reports = [(row, context.reported) for row in context.track(["a", "b"], message="rows")]
    rows_and_reports.append(("end", context.reported))
    assert rows_and_reports == [("a", (0, 2, "rows")), ("b", (1, 2, "rows")), ("end", (2, 2, "rows"))]
    rows = [*context.track(iter("abc"), total=2), context.reported]
    assert rows == ["a", "b", "c", (3, None, None)]  # the total was an estimate
    with pytest.raises(InvalidOptionError, match="total"):
        context.track([], total=-1)


@pytest.mark.slow
async def test_a_handler_in_a_child_process_reports(engine: Engine, tmp_path: Path) -> None:
    (job_id,) = enqueue(engine, isolated.reports.job(str(tmp_path / "enough")))
    worker = Worker(isolated.jobs, engine, options=quick(heartbeat_timeout=timedelta(minutes=10)))
    async with working(worker) as log:
        await until(
            lambda: (progress := progress_of(engine, job_id)) is not None and progress.message == "last",
            description="the last",
        )
        progress = progress_of(engine, job_id)
        assert progress is not None
        assert (progress.done, progress.total) == (100_000, 100_000)
        (tmp_path / "enough").touch()
        await log.until(JobCompleted)


def test_progress_is_none_without_a_report_in_the_worker_row(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    assert progress_of(engine, jobs.add(JobStatus.RUNNING, attempt=1)) is None
    assert progress_of(engine, jobs.add()) is None
