"""The figures of single minutes: one worker writes them, bounded, and they are summed by time, queue and type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.errors import SchemaMissingError
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.observe.minutes import percentile, series, totals
from sa_jobqueue.settings import Retention
from sa_jobqueue.statements import minutes
from sa_jobqueue.worker.background.pruner import Pruner
from tests.fixtures.jobs import Jobs
from tests.fixtures.minutes import record
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import shared


@pytest.fixture
def last(engine: Engine) -> datetime:
    """Give the last full minute. The next one may begin during the test."""
    with engine.connect() as connection:
        minute: datetime = connection.execute(text("SELECT date_trunc('minute', now()) - interval '1 minute'")).scalar_one()
    return minute


def ended(engine: Engine, jobs: Jobs, last: datetime, *, queue: str, type_name: str, wait: float, run: float) -> None:
    """Add a job that ended in a minute."""
    job_id = jobs.add(JobStatus.COMPLETED, queue=queue, type_name=type_name)
    write(
        engine,
        "UPDATE job SET created_at = :last, scheduled_at = :last, started_at = :last + make_interval(secs => :wait),"
        " completed_at = :last + make_interval(secs => :ended) WHERE id = :id",
        {"id": job_id, "last": last, "wait": wait, "ended": wait + run},
    )


def hour(engine: Engine) -> datetime:
    with engine.connect() as connection:
        now: datetime = connection.execute(select(func.now())).scalar_one()
    return now.astimezone(UTC) - timedelta(hours=1)


def test_a_minute_has_the_figures_of_each_queue_and_type_and_of_all(engine: Engine, jobs: Jobs, last: datetime) -> None:
    for _ in range(3):
        ended(engine, jobs, last, queue="mail", type_name="send", wait=0.2, run=20)
    ended(engine, jobs, last, queue="pay", type_name="charge", wait=40, run=0.02)
    failed = jobs.add(JobStatus.RUNNING, queue="pay", type_name="charge")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE job SET created_at = now() - interval '1 day' WHERE id = '{failed}'"))
        row = {"job_id": failed, "attempt": 1, "outcome": "failed", "worker_id": "one", "started_at": func.now()}
        connection.execute(insert(Job.Attempt).values(row | {"ended_at": last}))
    jobs.add(queue="mail", type_name="send")
    assert record(engine) == 1
    with Session(engine) as session:
        since = hour(engine)
        all_points = series(session, since=since)
        assert len(all_points) == 40  # minutes without jobs are points as well
        [minute] = [minute for minute in all_points if minute.completed]
        assert (minute.enqueued, minute.completed, minute.failed, minute.running) == (4, 4, 1, 0)
        by_type = totals(session, since=since, by="type_name")
        assert {name: (minute.completed, minute.failure_ratio) for name, minute in by_type.items()} == {
            "send": (3, 0.0),
            "charge": (1, 0.5),
        }
        assert set(totals(session, since=since, by="queue")) == {"mail", "pay"}
        [send] = series(session, since=since, step=timedelta(hours=1), type_name="send")
        wait, run = send.wait(0.5), send.run(0.95)
        assert wait is not None
        assert run is not None
        assert 0.1 <= wait.total_seconds() <= 0.25
        assert 10 <= run.total_seconds() <= 30
        assert sum(minute.completed for minute in series(session, since=since, queue="pay", type_name="send")) == 0
        assert send.seconds == 2400  # of the minutes without such a job as well


def test_minutes_in_which_workers_were_idle_are_recorded_later(engine: Engine, jobs: Jobs) -> None:
    jobs.add_many(3, queue="mail", type_name="send")
    earlier = "now() - interval '9 min'"
    write(engine, f"UPDATE job SET created_at = {earlier}, scheduled_at = {earlier}")
    record(engine)
    due = [figures.due for figures in call(engine, series, since=hour(engine), queue="mail")]
    assert due == [0] * 31 + [3] * 9 or due == [0] * 30 + [3] * 10


def test_a_minute_has_the_busiest_queues_and_types_only(engine: Engine, jobs: Jobs, last: datetime) -> None:
    for number in range(5):
        for _ in range(number + 1):
            ended(engine, jobs, last, queue="q", type_name=f"type{number}", wait=0, run=1)
    record(engine, most=2)
    with Session(engine) as session:
        assert set(totals(session, since=hour(engine), by="type_name")) == {"type3", "type4"}
        assert max(figures.completed for figures in series(session, since=hour(engine))) == 15


def test_one_transaction_records_a_minute(engine: Engine, database_url: str) -> None:
    other_engine = create_engine(database_url)
    with engine.begin() as connection:
        assert len(connection.execute(minutes.unrecorded(Job)).all()) == 1
        assert record(other_engine) == 0
    assert record(other_engine) == 1
    other_engine.dispose()


async def test_workers_record_minutes_and_delete_those_older_than_a_day(async_engine: AsyncEngine) -> None:
    old = {"queue": "", "type_name": "", **dict.fromkeys(minutes.COUNTS, 0), "wait": [0], "run": [0]}
    async with async_engine.begin() as connection:
        await connection.execute(insert(Job.Minute).values(old | {"minute": func.now() - timedelta(hours=25)}))
    await Pruner(shared(async_engine)).record_minutes()
    async with async_engine.connect() as connection:
        ages: list[Any] = list((await connection.execute(select(func.now() - Job.Minute.minute))).scalars())
    assert len(ages) == 40
    assert all(age < timedelta(minutes=42) for age in ages)


def _ended_last_minute(engine: Engine, jobs: Jobs, last: datetime) -> Any:
    job_id = jobs.add(JobStatus.COMPLETED)
    with engine.begin() as connection:
        times = dict.fromkeys(("created_at", "scheduled_at", "started_at", "completed_at", "chain_completed_at"), last)
        connection.execute(update(Job).where(Job.id == job_id).values(times))
    return job_id


async def test_retention_deletes_jobs_after_their_last_minute_is_recorded(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, last: datetime
) -> None:
    pruner = Pruner(shared(async_engine, JobQueue(retention=Retention(completed=timedelta(0)))))
    _ended_last_minute(engine, jobs, last)
    with engine.begin() as connection:  # another worker is about to record it
        assert len(connection.execute(minutes.unrecorded(Job)).all()) == 1
        await pruner.prune()
        assert len(jobs.statuses()) == 1
    await pruner.prune()
    assert jobs.statuses() == {}
    jobs.add(JobStatus.COMPLETED)
    with engine.connect() as connection:
        await pruner.prune()
        is_same_minute = connection.scalar(select(func.date_trunc("minute", func.now()) == last + timedelta(minutes=1)))
        assert not is_same_minute or len(jobs.statuses()) == 1
    assert sum(point.completed for point in call(engine, series, since=hour(engine))) == 2 - len(jobs.statuses())


async def test_retention_goes_on_if_no_minute_can_be_recorded(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, last: datetime
) -> None:
    pruner = Pruner(shared(async_engine, JobQueue(retention=Retention(completed=timedelta(0)))))
    await pruner.prune()
    jobs.add(JobStatus.COMPLETED)
    write(engine, "ALTER TABLE job_minute RENAME TO elsewhere")
    with pytest.raises(SchemaMissingError):
        await pruner.prune()
    assert jobs.statuses() == {}


@pytest.mark.parametrize(("share", "seconds"), [(0.25, 0.0075), (0.5, 0.01), (1.0, 1.0)])
def test_percentiles_are_interpolated_within_a_bucket(share: float, seconds: float) -> None:
    buckets = [0] * (len(BOUNDS) + 1)
    buckets[1] = buckets[7] = 2
    estimate = percentile(buckets, share)
    assert estimate is not None
    assert estimate.total_seconds() == pytest.approx(seconds)
    assert percentile([0] * 16, share) is None
    assert percentile([0] * 15 + [4], share) == timedelta(seconds=1800)
