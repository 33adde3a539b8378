"""A server stamps no time in its future: rows with one are given the present, others stay as they are."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus, Schedule
from sa_jobqueue.operations import list_schedules, upsert_schedule
from sa_jobqueue.operations.schedules import correct_schedules
from sa_jobqueue.statements import corrections
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs

pytestmark = both_servers

MINUTE = timedelta(minutes=1)
Sessions = sessionmaker[Session]


def test_heartbeats_in_the_future_are_set_to_now(sessions: Sessions, jobs: Jobs) -> None:
    for worker_id, seconds in (("ahead", -3600), ("slightly ahead", -30), ("silent", 100)):
        jobs.add_worker(worker_id, silent_for=seconds)
    with sessions.begin() as session:
        corrected = session.execute(corrections.correct_heartbeats(Job), {"after": MINUTE}).scalars().all()
        assert corrected == ["ahead"]
        is_now = select(Job.Worker.heartbeat_at == func.now()).where(Job.Worker.id == "ahead")
        assert session.scalar(is_now) is True


def test_leases_in_the_future_start_now_and_keep_their_length(sessions: Sessions, jobs: Jobs) -> None:
    ahead, present = jobs.add(JobStatus.RUNNING), jobs.add(JobStatus.RUNNING)
    with sessions.begin() as session:
        begun = func.now() + timedelta(days=1)
        session.execute(update(Job).where(Job.id == ahead).values(started_at=begun, leased_until=begun + 5 * MINUTE))
    with sessions.begin() as session:
        parameters = {"after": MINUTE, "limit": 10}
        assert session.execute(corrections.correct_leases(Job), parameters).scalars().all() == [ahead]
        row = session.execute(
            select(Job.started_at == func.now(), Job.leased_until - func.now(), Job.attempt, Job.status).where(
                Job.id == ahead
            )
        ).one()
        assert row == (True, 5 * MINUTE, 1, JobStatus.RUNNING)
        assert present not in session.execute(corrections.correct_leases(Job), parameters).scalars().all()


def test_transaction_ids_in_the_future_are_corrected_and_locked_jobs_skipped(sessions: Sessions, jobs: Jobs) -> None:
    ahead, locked_id, present = jobs.add(), jobs.add(), jobs.add()
    with sessions.begin() as session:
        session.execute(text("UPDATE job SET changed_xid = '999999999' WHERE id <> :present"), {"present": present})
    correct = corrections.correct_transactions(Job)
    with sessions() as holder, sessions.begin() as session:
        holder.execute(select(Job.id).where(Job.id == locked_id).with_for_update())
        assert session.execute(correct, {"limit": 10}).scalars().all() == [ahead]
        is_own = text("SELECT changed_xid = pg_current_xact_id() FROM job WHERE id = :id")
        assert session.scalar(is_own, {"id": ahead}) is True
    for expected in ([locked_id], []):
        with sessions.begin() as session:
            assert session.execute(correct, {"limit": 10}).scalars().all() == expected


def test_schedules_too_far_in_the_future_are_reset_to_their_next_time(sessions: Sessions) -> None:
    with sessions.begin() as session:
        for name in ("ahead", "as it says", "sooner"):
            upsert_schedule(session, Schedule(name=name, type_name="test", cron="0 4 1 1 *"))
        times = {schedule.name: schedule.next_fire_at for schedule in list_schedules(session)}
        for name, moved in (("ahead", timedelta(days=366)), ("sooner", -MINUTE)):
            row = update(Job.Schedule).where(Job.Schedule.name == name)
            session.execute(row.values(next_fire_at=Job.Schedule.next_fire_at + moved))
    with sessions.begin() as session:
        assert correct_schedules(session) == ["ahead"]
        next_times = {schedule.name: schedule.next_fire_at for schedule in list_schedules(session)}
        assert next_times["ahead"] == times["ahead"]
        assert next_times["as it says"] == times["as it says"]
        assert times["sooner"] is not None
        assert next_times["sooner"] == times["sooner"] - MINUTE
