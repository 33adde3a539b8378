"""Jobs looked at, cancelled, rescheduled and triggered, in the caller's transaction."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus, cancel_jobs, errors, get_job
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import BulkResult, reschedule_jobs, trigger_jobs
from tests.fixtures.database import both_servers
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE

pytestmark = both_servers

FUTURE = datetime(2099, 1, 1, tzinfo=UTC)
ENDED = {JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED}


def one_of_each(jobs: Jobs) -> dict[JobStatus, UUID]:
    return {status: jobs.add(status) for status in JobStatus}


# Cancelling.


def test_cancel_jobs_cancels_open_jobs_and_returns_their_ids(session: Session, jobs: Jobs) -> None:
    job_ids = one_of_each(jobs)
    result = cancel_jobs(session, list(job_ids.values()))
    assert result.matched == len(job_ids)
    cancelled = result.ids
    assert set(cancelled) == {job_id for status, job_id in job_ids.items() if status not in ENDED}
    assert jobs.status(job_ids[JobStatus.PENDING]) is JobStatus.PENDING
    session.commit()
    for status, job_id in job_ids.items():
        assert jobs.status(job_id) is (status if status in ENDED else JobStatus.CANCELLED)
    assert [attempt["outcome"] for attempt in jobs.attempts(job_ids[JobStatus.RUNNING])] == ["cancelled"]


@pytest.mark.parametrize("change", [cancel_jobs, trigger_jobs, reschedule_jobs])
def test_unknown_job_ids_are_all_named_and_nothing_is_changed(session: Session, jobs: Jobs, change: Any) -> None:
    job_id, unknown = jobs.add(due_in=60), [uuid7(), uuid7()]
    before = dict(jobs.get(job_id))
    with pytest.raises(errors.NotFoundError) as caught:
        change(session, [unknown[0], job_id, unknown[1]])
    assert caught.value.ids == tuple(unknown)
    session.commit()
    assert dict(jobs.get(job_id)) == before


@pytest.mark.parametrize("change", [cancel_jobs, trigger_jobs, reschedule_jobs])
def test_an_empty_list_of_ids_changes_nothing(session: Session, jobs: Jobs, change: Any) -> None:
    job_id = jobs.add()
    assert change(session, []) == BulkResult([], 0)
    session.commit()
    assert jobs.status(job_id) is JobStatus.PENDING


def test_a_repeated_id_is_cancelled_once(session: Session, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.RUNNING)
    assert cancel_jobs(session, [job_id, job_id]).ids == [job_id]
    session.commit()
    assert len(jobs.attempts(job_id)) == 1


def test_a_new_job_can_be_changed_in_the_same_transaction(session: Session, jobs: Jobs) -> None:
    job = Job("test", at=FUTURE)
    session.add(job)
    trigger_jobs(session, [job.id])
    assert job.scheduled_at == job.created_at
    assert cancel_jobs(session, [job.id]).ids == [job.id]
    assert job.status is JobStatus.CANCELLED
    session.commit()
    assert jobs.status(job.id) is JobStatus.CANCELLED


def test_cancel_jobs_refreshes_jobs_loaded_in_the_session(session: Session, jobs: Jobs) -> None:
    loaded, other_job = session.get_one(Job, jobs.add()), session.get_one(Job, jobs.add())
    cancel_jobs(session, [loaded.id])
    assert loaded.status is JobStatus.CANCELLED
    assert "status" in other_job.__dict__


def test_concurrent_cancellations_never_deadlock_and_the_second_finds_nothing(
    sessions: sessionmaker[Session], engine: Engine, jobs: Jobs
) -> None:
    """Both name the same jobs in opposite orders: they queue up at the first, and never deadlock."""
    ids = sorted(jobs.add(JobStatus.RUNNING) for _ in range(3))
    answers: list[Any] = []

    def lose() -> None:
        answers.append(call(sessions, cancel_jobs, ids[::-1]).ids)

    with sessions.begin() as winner:
        assert sorted(cancel_jobs(winner, ids).ids) == ids
        loser = threading.Thread(target=lose)
        loser.start()
        until_locks_are_waited_for(engine)
    loser.join(timeout=PATIENCE)
    assert answers == [[]]
    assert all(len(jobs.attempts(job_id)) == 1 for job_id in ids)


# Another time.


def test_reschedule_jobs_changes_the_due_time(session: Session, jobs: Jobs) -> None:
    for status in (JobStatus.PENDING, JobStatus.BLOCKED):
        job_id = jobs.add(status, due_in=60)
        reschedule_jobs(session, [job_id], at=FUTURE)
        session.commit()
        assert jobs.get(job_id)["scheduled_at"] == FUTURE
        reschedule_jobs(session, [job_id], delay=timedelta(hours=2))
        now = session.execute(text("SELECT now()")).scalar_one()
        session.commit()
        assert jobs.get(job_id)["scheduled_at"] == now + timedelta(hours=2)
        reschedule_jobs(session, [job_id], at=datetime(2020, 1, 1, tzinfo=UTC))
        now = session.execute(text("SELECT now()")).scalar_one()
        session.commit()
        assert jobs.get(job_id)["scheduled_at"] == now


def test_triggering_makes_jobs_due_now_and_wakes_workers(session: Session, jobs: Jobs, notifications: Notifications) -> None:
    later, retried = jobs.add(due_in=3600), jobs.add(due_in=60, attempt=3, queue="q")
    assert trigger_jobs(session, [later, retried, later]) == BulkResult([later, retried], 2)
    now = session.execute(text("SELECT now()")).scalar_one()
    assert notifications.seen() == []
    session.commit()
    for job_id in (later, retried):
        assert jobs.get(job_id)["scheduled_at"] == now
    assert jobs.get(retried)["attempt"] == 3
    assert sorted(notifications.seen()) == [("due", "default"), ("due", "q")]


@pytest.mark.parametrize("change", [trigger_jobs, reschedule_jobs])
def test_jobs_that_cannot_be_rescheduled_are_all_named_and_none_is_moved(session: Session, jobs: Jobs, change: Any) -> None:
    id_by_status = {status: jobs.add(status, due_in=60) for status in JobStatus}
    before = [dict(jobs.get(job_id)) for job_id in id_by_status.values()]
    with pytest.raises(errors.IllegalTransitionError) as caught:
        change(session, list(id_by_status.values()))
    offending = [JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED]
    assert all(f"{id_by_status[status]} is {status}" in str(caught.value) for status in offending)
    session.commit()  # nothing was refused by the database, so the transaction is as good as before
    assert [dict(jobs.get(job_id)) for job_id in id_by_status.values()] == before


def test_rescheduling_a_job_cancelled_concurrently_is_refused(
    two_sessions: tuple[Session, Session], engine: Engine, jobs: Jobs
) -> None:
    """The loser waits for the winner's lock, and decides by the rows after it."""
    winner, loser = two_sessions
    job_id = jobs.add(due_in=60)
    cancel_jobs(winner, [job_id])
    answers: list[Any] = []

    def lose() -> None:
        try:
            reschedule_jobs(loser, [job_id], delay=timedelta(hours=1))
        except errors.IllegalTransitionError as error:
            answers.append(str(error))

    thread = threading.Thread(target=lose)
    loser.execute(text("SET LOCAL lock_timeout = '60s'"))
    thread.start()
    until_locks_are_waited_for(engine)
    winner.commit()
    thread.join(timeout=PATIENCE)
    (answer,) = answers
    assert f"{job_id} is cancelled" in answer


@pytest.mark.parametrize(
    ("field", "when"),
    [
        ("delay", {"delay": timedelta(seconds=-1)}),
        ("at", {"at": datetime(2026, 1, 1)}),
        ("delay", {"at": FUTURE, "delay": timedelta(0)}),
    ],
)
def test_an_invalid_reschedule_time_is_refused(session: Session, jobs: Jobs, field: str, when: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidJobError) as caught:
        reschedule_jobs(session, [jobs.add()], **when)
    assert caught.value.field == field
    assert not session.in_transaction()


# Looking.


def test_get_job_reads_the_current_row(session: Session, jobs: Jobs) -> None:
    job_id = jobs.add()
    job = get_job(session, job_id)
    session.commit()
    jobs._change(session.connection(), job_id, priority=5)
    session.connection().commit()
    again = get_job(session, job_id)
    assert again is job
    assert isinstance(again, Job)
    assert again.priority == 5
