"""Workers on Spark's executors: they do all there is and leave, drain when asked, and lose nothing when killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus
from sa_jobqueue.errors import DatabaseUnavailableError, InvalidOptionError
from sa_jobqueue.events import AttemptLost, JobCancelled, JobCompleted, JobDied, JobRescheduled, JobStarted
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import WorkerFilter, check_schema, drain_workers, list_workers
from sa_jobqueue.pipeline.spark.errors import WorkersFailedError
from sa_jobqueue.pipeline.spark.progress import WorkersEnd
from sa_jobqueue.pipeline.spark.slots import SlotCounts
from sa_jobqueue.pipeline.spark.workers import WorkerSet, run_workers
from sa_jobqueue.types import AttemptOutcome, DeadReason
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, rows, write
from tests.spark import workers_app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "tests.spark.workers_app:jobs"
MakeSet = Callable[..., WorkerSet]
pytestmark = own_database
WAIT_LIMIT = timedelta(seconds=90)
"""How long anything may last: the first task of a process imports everything, on a machine that may be busy."""


def eventually(condition: Callable[[], bool], *, description: str) -> None:
    """Poll until a condition holds that sends no notification."""
    deadline = time.monotonic() + WAIT_LIMIT.total_seconds()
    while not condition():
        assert time.monotonic() < deadline, f"{description} did not become true"
        time.sleep(0.02)


@pytest.fixture
def effects(engine: Engine) -> Callable[[], list[Any]]:
    """Give what handlers have written, as `(job_id, attempt, pid)`."""
    write(engine, text(workers_app.EFFECTS))

    def read() -> list[Any]:
        return rows(engine, "SELECT job_id, attempt, pid FROM effect")

    return read


@pytest.fixture
def worker_set(spark: SparkSession, database_url: str) -> Iterator[MakeSet]:
    """Give a maker of worker sets that wait for nothing longer than they must; they are cancelled at the end."""
    worker_sets: list[WorkerSet] = []

    def make(**options: Any) -> WorkerSet:
        all_options: dict[str, Any] = {
            "slots": 2,
            "idle_exit": timedelta(milliseconds=500),
            "shutdown_timeout": timedelta(seconds=20),
            "poll_interval": timedelta(milliseconds=100),
            "heartbeat_interval": timedelta(milliseconds=300),
            "heartbeat_timeout": timedelta(seconds=10),
            "cancel_timeout": timedelta(seconds=10),
        }
        worker_sets.append(WorkerSet(spark, APP, url=database_url, **all_options | options))
        return worker_sets[-1]

    yield make
    for workers in worker_sets:
        if workers.is_running:
            workers.cancel()


def add(engine: Engine, count: int, **payload: Any) -> set[Any]:
    with Session(engine) as session, session.begin():
        new_jobs = [workers_app.effect.job(dict(payload)) for _ in range(count)]
        session.add_all(new_jobs)
        return {job.id for job in new_jobs}


def test_a_batch_of_workers_runs_all_jobs_and_ends_when_idle(
    spark: SparkSession,
    database_url: str,
    engine: Engine,
    effects: Callable[[], list[Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = add(engine, 40)
    enqueue(engine, workers_app.fails.job(None))
    report = run_workers(
        spark, APP, url=database_url, slots=2, idle_exit=timedelta(seconds=3), concurrency=4, progress="lines"
    )
    begun, *_, ended = capsys.readouterr().err.splitlines()
    assert begun == f"workers {report.name}: running due jobs"
    assert ended.startswith(f"workers {report.name}: done after ")
    assert (report.completed, report.failed, report.rounds, report.ended) == (40, 1, 1, WorkersEnd.IDLE)
    assert {row.job_id for row in effects()} == ids
    assert len(effects()) == 40
    # In the processes of the executors, not here.
    assert os.getpid() not in {row.pid for row in effects()}
    with engine.connect() as connection:  # they said goodbye, and keep no connection
        assert connection.execute(text("SELECT count(*) FROM worker")).scalar_one() == 0
    eventually(lambda: _connections(engine) == 0, description="every connection is closed")


def test_worker_batches_repeat_until_stopped(engine: Engine, worker_set: MakeSet, effects: Callable[[], list[Any]]) -> None:
    with worker_set(slots=1, max_runtime=timedelta(seconds=1), idle_exit=timedelta(seconds=3)) as workers:
        # A worker leaves after a second whatever there is to do; that of another round does what comes then.
        eventually(lambda: workers.report.rounds >= 1, description="the first round is over")
        add(engine, 1)
        eventually(lambda: len(effects()) == 1, description="it is done")
        assert workers.is_running
        report = workers.stop()
    assert report.rounds >= 2
    assert (report.completed, report.ended) == (1, WorkersEnd.DRAINED)


def test_a_drain_finishes_running_jobs_and_claims_no_more(
    engine: Engine, worker_set: MakeSet, jobs: Jobs, effects: Callable[[], list[Any]], tmp_path: Path
) -> None:
    running = add(engine, 2, gate=str(tmp_path))
    workers = worker_set(until_idle=False)
    with workers:
        eventually(lambda: len(list(tmp_path.iterdir())) == 2, description="both slots have a job")
        waiting = add(engine, 2)
        workers.drain()

        def all_draining() -> bool:
            return {worker.state for worker in call(engine, list_workers)} == {"draining"}

        eventually(all_draining, description="both have heard")
        (tmp_path / "open").touch()
        report = workers.wait(WAIT_LIMIT)
    assert (report.ended, report.completed) == (WorkersEnd.DRAINED, 2)
    assert {row.job_id for row in effects()} == running
    assert {jobs.status(job_id) for job_id in waiting} == {JobStatus.PENDING}
    assert workers.report.elapsed == report.elapsed  # it does not grow after the end
    with pytest.raises(RuntimeError, match="were started already; make another WorkerSet"):
        workers.start()


@pytest.mark.parametrize("method", ["wait", "drain", "stop", "cancel"])
def test_workers_that_were_not_started_are_neither_waited_for_nor_stopped(worker_set: MakeSet, method: str) -> None:
    workers = worker_set()
    with pytest.raises(RuntimeError, match=r"were not started: call start\(\)"):
        getattr(workers, method)()
    assert (workers.is_running, workers.report.elapsed) == (False, timedelta(0))


def test_draining_the_workers_through_the_database_ends_the_set(engine: Engine, worker_set: MakeSet) -> None:
    # Between two batches no worker would be there to drain.
    workers = worker_set(slots=1, until_idle=False, idle_exit=timedelta(hours=1))
    with workers:

        def asked() -> bool:
            return len(call(engine, drain_workers, where=WorkerFilter(names=[f"{workers.name}.*"])).ids) == 1

        eventually(asked, description="there is one to ask")
        assert workers.wait(WAIT_LIMIT).ended is WorkersEnd.DRAINED


def test_killed_and_frozen_processes_lose_no_job_and_repeat_no_effect(
    engine: Engine, worker_set: MakeSet, jobs: Jobs, effects: Callable[[], list[Any]], tmp_path: Path
) -> None:
    ids = add(engine, 6, gate=str(tmp_path))
    with worker_set(concurrency=3, idle_exit=timedelta(seconds=4)) as workers:
        eventually(lambda: len(_holders(tmp_path)) == 6, description="three jobs are held by either process")
        killed, frozen = sorted(set(_holders(tmp_path).values()))
        os.kill(killed, signal.SIGKILL)
        os.kill(frozen, signal.SIGSTOP)
        for pid in (killed, frozen):
            jobs.silence(pid)
        try:
            # Spark starts the killed task again, and its worker does what both have lost.
            eventually(lambda: len(effects()) == 6, description="all six are done by a third process")
        finally:
            (tmp_path / "open").touch()
            os.kill(frozen, signal.SIGCONT)
        report = workers.wait(WAIT_LIMIT)  # the frozen one wakes up, goes on with its three, and finds them gone
    assert sorted(row.job_id for row in effects()) == sorted(ids)
    assert {row.attempt for row in effects()} == {2}
    assert {row.pid for row in effects()}.isdisjoint({killed, frozen})
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}
    assert report.ended is WorkersEnd.IDLE
    outcomes = [attempt["outcome"] for job_id in ids for attempt in jobs.attempts(job_id)]
    assert outcomes == ["lost"] * 6


def test_jobs_that_do_not_drain_are_cancelled_and_rescued(
    engine: Engine, worker_set: MakeSet, jobs: Jobs, effects: Callable[[], list[Any]], tmp_path: Path
) -> None:
    (job_id,) = add(engine, 1, gate=str(tmp_path))
    workers = worker_set(slots=1, until_idle=False)
    workers.start()
    eventually(lambda: len(_holders(tmp_path)) == 1, description="it runs")
    (pid,) = _holders(tmp_path).values()
    workers.cancel()
    assert workers.wait(WAIT_LIMIT).ended is WorkersEnd.CANCELLED
    eventually(lambda: not _is_process(pid), description="Spark has killed the process")
    jobs.silence(pid)
    with worker_set(slots=1, idle_exit=timedelta(seconds=4)) as other_workers:
        assert other_workers.wait(WAIT_LIMIT).completed == 1
    assert [(row.job_id, row.attempt) for row in effects()] == [(job_id, 2)]


def test_worker_start_errors_are_raised_without_secrets(
    spark: SparkSession,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    event_log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sqlalchemy import make_url

    secret = "Tr0ub4dor"
    url = make_url(database_url).set(password=secret).render_as_string(hide_password=False)
    nowhere = make_url(url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(DatabaseUnavailableError) as refused:
        WorkerSet(spark, APP, slots=1, url=nowhere).start()
    workers = WorkerSet(spark, APP, slots=1, url=url, idle_exit=timedelta(milliseconds=100))

    def check_then_rename(session: Session, **options: Any) -> None:  # the driver finds the table, the tasks do not
        check_schema(session, **options)
        session.execute(text("ALTER TABLE job RENAME TO gone"))
        session.commit()

    monkeypatch.setattr("sa_jobqueue.pipeline.spark.workers.check_schema", check_then_rename)
    workers.start()
    with pytest.raises(WorkersFailedError, match="SchemaMissingError") as failed:
        workers.wait(WAIT_LIMIT)
    texts = [str(refused.value), repr(refused.value), str(failed.value), repr(workers._settings), caplog.text]
    texts += [path.read_text(errors="replace") for path in event_log.iterdir()]
    assert all(secret not in text for text in texts)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"slots": 0}, "slots"),
        ({"idle_exit": timedelta(0)}, "idle_exit"),
        ({"max_runtime": 600}, "max_runtime"),
        ({"name": "a b"}, "name"),
        ({"concurrency": 0}, "concurrency"),
        ({"url": "mysql://x"}, "url"),
        ({"progress": "dots"}, "progress"),
        ({"app": "tests.spark.workers_app:not_jobs"}, "app"),
        ({"app": "nowhere:jobs"}, "app"),
    ],
)
def test_invalid_worker_set_options_are_refused_before_starting(
    spark: SparkSession, database_url: str, options: dict[str, Any], option: str
) -> None:
    all_options: dict[str, Any] = {"app": APP, "slots": 1, "url": database_url} | options
    with pytest.raises(InvalidOptionError) as refused:
        WorkerSet(spark, all_options.pop("app"), **all_options)
    assert refused.value.option == option


def test_only_failed_attempts_count_as_failed() -> None:
    counts = SlotCounts()
    attempt: dict[str, Any] = {"job_id": uuid7(), "type_name": "t", "attempt": 1}
    for outcome in AttemptOutcome:
        if outcome not in {AttemptOutcome.CANCELLED, AttemptOutcome.SUPERSEDED}:  # after which a job does not run again
            counts.count(JobRescheduled(**attempt, outcome=outcome, delay=timedelta(0), error=None))
    assert counts.failed == 3  # failed, timed out and lost, but neither snoozed nor released
    counts.count(JobDied(**attempt, reason=DeadReason.EXHAUSTED, error=None))
    counts.count(JobCancelled(**attempt))
    counts.count(JobStarted(**attempt))
    counts.count(JobCompleted(**attempt, ran=timedelta(0)))
    counts.count(AttemptLost(**attempt))
    assert (counts.started, counts.completed, counts.failed, counts.lost) == (1, 1, 5, 1)


def test_worker_progress_counts_the_jobs_that_are_no_longer_due(engine: Engine, worker_set: MakeSet) -> None:
    workers = worker_set()
    assert workers._due() == (0, 0)
    ids = add(engine, 5)
    assert workers._due() == (0, 5)
    write(engine, "DELETE FROM job WHERE id IN (:one, :other)", {"one": min(ids), "other": max(ids)})
    assert workers._due() == (2, 5)


def test_speculation_is_refused(spark: SparkSession, database_url: str) -> None:
    class Speculating:
        class conf:  # noqa: N801
            @staticmethod
            def get(name: str, default: str) -> str:
                return "true"

    session: Any = Speculating()
    with pytest.raises(InvalidOptionError, match=r"spark\.speculation"):
        WorkerSet(session, APP, slots=1, url=database_url)


def _holders(gate: Path) -> dict[str, int]:
    """Return which process runs the first attempt of which job."""
    return {path.stem: int(path.suffix[1:]) for path in gate.iterdir() if path.name != "open"}


def _is_process(pid: int) -> bool:
    from tests.fixtures.workers import is_running

    return is_running(pid)


def _connections(engine: Engine) -> int:
    with engine.connect() as connection:
        count: int = connection.execute(
            text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        ).scalar_one()
        return count
