"""Why does a schedule not fire? Its cause is shown for the schedule and for each job that it made."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, Schedule, aio, operations
from sa_jobqueue.errors import NotFoundError
from tests.fixtures.commands import Run, document, run
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call

__all__ = ["run"]  # a fixture

Sessions = sessionmaker[Session]


def change(sessions: Sessions, **columns: Any) -> None:
    with sessions.begin() as session:
        session.execute(update(Job.Schedule).values(columns))


def put(sessions: Sessions, **options: Any) -> None:
    call(sessions, operations.upsert_schedule, Schedule(name="nightly", type_name="test", **{"cron": "@hourly"} | options))


def test_explain_schedule_names_the_cause_that_keeps_it_from_firing(sessions: Sessions, jobs: Jobs, run: Run) -> None:
    put(sessions, overlap=False)

    def explained() -> Any:
        with sessions() as session:
            return operations.explain_schedule(session, "nightly")

    assert explained().cause is operations.ScheduleCause.WAITING
    assert re.fullmatch(r"It fires next in .+, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", explained().sentence)
    change(sessions, next_fire_at=func.now() - timedelta(minutes=1))
    assert (explained().cause, explained().evidence["live_workers"]) == (operations.ScheduleCause.NO_WORKER, 0)
    jobs.add_worker()
    assert explained().cause is operations.ScheduleCause.ABOUT_TO_FIRE
    (fired,) = call(sessions, operations.fire_schedules)
    explanation = explained()
    assert (explanation.cause, explanation.evidence["last_job"]) == (operations.ScheduleCause.OVERLAPPING, fired.job_ids[0])
    assert explanation.evidence["left_out"] == 0
    # Five of its times pass while its last job is open; each is left out.
    change(sessions, updated_at=func.now() - timedelta(days=1), last_fire_at=func.now() - timedelta(hours=5))
    explanation = explained()
    assert 4 <= explanation.evidence["left_out"] <= 5
    assert "created no job" in explanation.sentence
    call(sessions, operations.pause_schedules, ["nightly"], by="ann")
    assert (explained().cause, explained().evidence["paused_by"]) == (operations.ScheduleCause.PAUSED, "ann")
    assert "paused" in run("schedules", "explain", "nightly").stdout
    assert document(run("schedules", "explain", "nightly", "--json"))["cause"] == "paused"
    change(sessions, error="no such zone")
    assert (explained().cause, "no such zone" in explained().sentence) == (operations.ScheduleCause.BROKEN, True)
    change(sessions, error=None, cron="99 * * * *")  # by SQL, and no worker has tried to fire it yet
    assert (explained().cause, "99" in explained().sentence) == (operations.ScheduleCause.BROKEN, True)
    with sessions() as session, pytest.raises(NotFoundError):
        operations.explain_schedule(session, "another")


def test_explain_schedule_names_what_keeps_a_late_one_from_firing(
    sessions: Sessions, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sessions)
    jobs.add_worker()
    change(sessions, next_fire_at=func.now() - timedelta(minutes=2))

    def explained() -> tuple[operations.ScheduleCause, str]:
        with sessions() as session:
            explanation = operations.explain_schedule(session, "nightly")
            return explanation.cause, explanation.sentence

    assert "a live worker should have fired it by now" in explained()[1]
    with sessions.begin() as holder:
        pid = holder.scalar(select(func.pg_backend_pid()))
        holder.execute(select(Job.Schedule.name).with_for_update())
        assert explained()[0] is operations.ScheduleCause.ABOUT_TO_FIRE  # as a worker's transaction may be the one
        monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
        cause, sentence = explained()
        assert cause is operations.ScheduleCause.LOCKED
        assert f"session {pid}" in sentence
        assert f"has locked its row; to end it: SELECT pg_terminate_backend({pid})." in sentence
    with sessions.begin() as session:
        refused = "VALUES ('nightly', 'fire', '23514', 'CheckViolation: no reports', now())"
        session.execute(text(f"INSERT INTO quarantine (subject, statement, sqlstate, error, retry_at) {refused}"))
    cause, sentence = explained()
    assert cause is operations.ScheduleCause.QUARANTINED
    assert "the database rejects the write: CheckViolation: no reports." in sentence


def test_explain_schedule_reports_skipped_times_with_the_reason(sessions: Sessions) -> None:
    put(sessions, misfire_policy="skip", cron="*/10 * * * *")
    change(sessions, next_fire_at=func.now() - timedelta(hours=3), updated_at=func.now() - timedelta(hours=3))
    with sessions.begin() as session:
        session.execute(text("UPDATE schedule SET grace = '0'"))
        operations.fire_schedules(session)
    with sessions() as session:
        explained = operations.explain_schedule(session, "nightly")
        # What was made of that span by hand was not left out.
        now = session.scalar(select(func.now()))
        assert now is not None
        runs = operations.run_schedule(session, "nightly", since=now - timedelta(hours=1), until=now)
        after = operations.explain_schedule(session, "nightly")
    assert 17 <= explained.evidence["left_out"] <= 19
    assert "misfire_policy='skip'" in explained.sentence
    assert explained.evidence["left_out"] - after.evidence["left_out"] == len(runs) >= 6


async def test_explain_names_the_schedule_that_enqueued_a_job(
    sessions: Sessions, jobs: Jobs, async_sessions: async_sessionmaker[AsyncSession]
) -> None:
    put(sessions)
    put_time = select(Job.Schedule.next_fire_at)
    with sessions() as session:
        at: datetime = session.scalars(put_time).one()  # type: ignore[assignment]
        fired = [operations.fire_schedules(session, at=at + timedelta(hours=n))[0] for n in range(2)]
        (by_hand,) = operations.run_schedule(session, "nightly")
        session.commit()
        for schedule_run in fired:  # also one that is not its last
            explained = operations.explain_job(session, schedule_run.job_ids[0])
            assert (explained.evidence["schedule"], explained.evidence["fired_for"]) == (
                "nightly",
                schedule_run.fire_times[0],
            )
            assert explained.sentence.endswith("It was created by the schedule 'nightly'.")
        explained = operations.explain_job(session, by_hand)
        assert (explained.evidence["schedule"], explained.evidence["fired_for"]) == ("nightly", None)
        assert "schedule" not in operations.explain_job(session, jobs.add()).evidence
    async with async_sessions() as asynchronous:
        assert (await aio.explain_schedule(asynchronous, "nightly")).cause is operations.ScheduleCause.WAITING


def test_explain_accepts_job_ids_without_a_timestamp(sessions: Sessions) -> None:
    put(sessions)
    job = Job("test", id=UUID(int=2**128 - 1))  # a random one may begin so: after the year 9999
    with sessions.begin() as session:
        session.add(job)
    with sessions() as session:
        assert "schedule" not in operations.explain_job(session, UUID(int=2**128 - 1)).evidence
