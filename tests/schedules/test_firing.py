"""A worker fires schedules, with any number of others beside it, and leaves the database alone in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobQueue, Schedule, events
from sa_jobqueue.operations import list_audit, list_schedules, pause_schedules, upsert_schedule
from sa_jobqueue.statements.controls import notify_rules
from sa_jobqueue.worker.background.scheduler import Scheduler
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, Start, shared, until

pytestmark = both_servers

Sessions = sessionmaker[Session]


def ticking(**options: Any) -> tuple[JobQueue[Job], list[datetime]]:
    """Return a registry with a schedule, and the list in which its handler notes its times."""
    jobs, noted = JobQueue(), list[datetime]()

    @jobs.cron("0 4 * * *", fire_time_field="at", **options)
    @jobs.handler("tick")
    async def tick(fired: dict[str, str]) -> None:
        noted.append(datetime.fromisoformat(fired["at"]))

    return jobs, noted


def make_due(sessions: Sessions, name: str = "tick") -> datetime:
    """Make a schedule due a second ago, and notify workers; return its time."""
    with sessions.begin() as session:
        at: datetime = session.scalar(select(func.now() - timedelta(seconds=1)))  # type: ignore[assignment]
        session.execute(update(Job.Schedule).where(Job.Schedule.name == name).values(next_fire_at=at))
        session.execute(notify_rules(Job))
    return at.astimezone(UTC)


def names(sessions: Sessions) -> list[str]:
    with sessions() as session:
        return [schedule.name for schedule in list_schedules(session)]


async def test_two_workers_write_declared_schedules_and_fire_each_run_once(start: Start, sessions: Sessions) -> None:
    jobs, noted = ticking()
    async with start(jobs) as first_worker, start(jobs) as second_worker:
        await until(lambda: names(sessions) == ["tick"])
        for times in (1, 2):
            at = await asyncio.to_thread(make_due, sessions)
            await until(lambda times=times: len(noted) == times)  # type: ignore[misc]
            assert noted[-1] == at
        fired = first_worker.of(events.ScheduleFired) + second_worker.of(events.ScheduleFired)
        assert sorted(event.fire_times for event in fired) == [(at,) for at in noted]
        await until(lambda: len(first_worker.of(events.JobCompleted) + second_worker.of(events.JobCompleted)) == 2)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 2


async def test_a_worker_reports_broken_and_undeclared_schedules(start: Start, sessions: Sessions) -> None:
    jobs, _ = ticking(name="old")
    async with start(jobs):
        await until(lambda: names(sessions) == ["old"])
    with sessions.begin() as session:
        session.execute(insert(Job.Schedule).values(name="broken", cron="never", type_name="tick"))
    jobs, _ = ticking(name="new")
    async with start(jobs) as log:
        (undeclared,) = await log.until(events.SchedulesUndeclared)
        assert undeclared.schedules == ("old",)
        (broken,) = await log.until(events.ScheduleBroken)
        assert broken.schedule == "broken"
        await asyncio.to_thread(make_due, sessions, "old")
        (fired,) = await log.until(events.ScheduleFired)
        assert fired.schedule == "old"


async def test_a_worker_reports_and_records_the_schedules_that_it_replaces(start: Start, sessions: Sessions) -> None:
    def version(cron: str, payload: int) -> JobQueue[Any]:
        jobs = JobQueue()

        @jobs.handler("send")
        async def send(number: int) -> None: ...

        jobs.schedule("nightly", cron=cron, handler=send, payload=payload)
        return jobs

    def declared() -> str | None:
        with sessions() as session:
            return session.scalar(select(Job.Schedule.cron))

    async with start(version("0 3 * * *", 1)) as old:
        await until(lambda: declared() == "0 3 * * *")
        async with start(version("0 4 * * *", 2)) as new:
            (changed,) = await new.until(events.SchedulesChanged)
            (differs,) = await old.until(events.SchedulesDiffer)
            assert not new.of(events.SchedulesDiffer)
            assert declared() == "0 4 * * *"
    assert differs.differences == {"nightly": {"cron": ("0 4 * * *", "0 3 * * *"), "input": ("(hidden)", "(hidden)")}}
    assert differs.worker_id != changed.worker_id
    assert changed.differences == {"nightly": {"cron": ("0 3 * * *", "0 4 * * *"), "input": ("(hidden)", "(hidden)")}}
    assert not old.of(events.SchedulesChanged)
    async with start(version("0 4 * * *", 2)) as same:
        await same.until(events.WorkerStarted)
    with sessions() as session:
        (replaced,) = list_audit(session)
    assert (replaced.operation, replaced.ids, replaced.done_by) == (
        *("sync_schedules", ["nightly"]),
        f"worker {changed.worker_id}",
    )
    assert replaced.arguments == {
        "differences": {"nightly": {"cron": ["0 3 * * *", "0 4 * * *"]}},
        "replaced_those_of": [differs.worker_id],
    }


async def test_a_worker_that_declares_again_leaves_schedules_to_live_workers_that_started_later(
    async_engine: AsyncEngine, sessions: Sessions, jobs: Jobs
) -> None:
    """As after a lost connection, which may lead to another database."""
    queue, _ = ticking()
    scheduler = Scheduler(shared(async_engine, queue))
    jobs.add_worker(WORKER, job_types=["tick"], started_at=datetime(2020, 1, 1, tzinfo=UTC))
    later = jobs.add_worker("later:1", job_types=["tick"], started_at=datetime(2020, 1, 2, tzinfo=UTC))
    with sessions.begin() as session:
        session.execute(insert(Job.Schedule).values(name="tick", cron="0 5 * * *", type_name="tick", source="code"))
    crons = []
    for _ in range(2):
        await scheduler.synchronise()
        with sessions.begin() as session:
            crons.append(session.scalar(select(Job.Schedule.cron)))
            session.execute(delete(Job.Worker).where(Job.Worker.id == later))
    assert crons == ["0 5 * * *", "0 4 * * *"]


async def test_the_scheduler_queries_only_when_a_schedule_is_due_or_it_is_woken(
    async_engine: AsyncEngine, sessions: Sessions
) -> None:
    statements: list[str] = []
    queried = asyncio.Event()

    def note(*arguments: Any) -> None:
        statements.append(arguments[2].lower())
        queried.set()

    event.listen(async_engine.sync_engine, "before_cursor_execute", note)
    call(sessions, upsert_schedule, Schedule(name="yearly", cron="@yearly", type_name="tick"))
    scheduler = Scheduler(shared(async_engine))
    running = asyncio.create_task(scheduler.run())
    try:
        for expected in (1, 2, 3):
            async with asyncio.timeout(PATIENCE):
                while sum("extract" in text for text in statements) < expected:
                    queried.clear()
                    await queried.wait()
            with pytest.raises(TimeoutError):  # all that it could do at once is done long before
                async with asyncio.timeout(0.2):
                    await asyncio.Event().wait()
            assert sum("extract" in text for text in statements) == expected
            scheduler.wake()
        assert not any("skip locked" in text for text in statements)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_pausing_or_resuming_a_schedule_takes_effect_at_once(start: Start, sessions: Sessions) -> None:
    jobs, noted = ticking()

    def pause() -> None:
        call(sessions, pause_schedules, ["tick"])

    def resume_late() -> None:
        with sessions.begin() as session:
            assert [schedule.overdue for schedule in list_schedules(session)] == [None]
            session.execute(update(Job.Schedule).values(paused_at=None))
            session.execute(notify_rules(Job))

    async with start(jobs, poll_interval=timedelta(minutes=1)):
        await until(lambda: names(sessions) == ["tick"])
        # In threads: this loop's own scheduler may hold the row.
        await asyncio.to_thread(pause)
        await asyncio.to_thread(make_due, sessions)
        assert noted == []
        await asyncio.to_thread(resume_late)
        await until(lambda: len(noted) == 1)
