"""A job that is claimed, cancelled and completed at the same time ends once, in every order there is."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, cancel_jobs
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.ids import uuid7
from sa_jobqueue.statements import completions
from tests.explorer import Explorer, Operation, Outcomes, Scenario, Steps
from tests.explorer.workers import SessionWorker


class Given(NamedTuple):
    """A pending job in a queue of its own."""

    job_id: UUID
    queue: str


class Lost(Exception):  # noqa: N818 - a signal: the attempt is not this worker's any more
    """The error that rolls a worker back when its completion was fenced off."""


def one_job(session: Session) -> Given:
    job_id = uuid7()
    job = Job(id=job_id, queue=f"q{job_id.hex}", type_name="test", input=None)
    session.add(job)
    return Given(job_id, job.queue)


def cancel(session: Session, setup: Given) -> list[Any]:
    return cancel_jobs(session, [setup.job_id]).ids


def work(session: Session, setup: Given) -> Steps:
    """Claim and complete as a worker does that writes many completions at once, each statement alone."""
    worker = SessionWorker(session, "batch:1", queues=(setup.queue,))
    claimed = worker.claim()
    yield "claim"
    return worker.complete(*claimed) if claimed else set()


def work_in_a_session(session: Session, setup: Given) -> Steps:
    """Claim, and complete in the transaction of the handler's own writes."""
    worker = SessionWorker(session, "session:1", queues=(setup.queue,))
    claimed = worker.claim()
    session.commit()
    yield "claim"
    if not claimed:
        return set()
    parameters = {
        "job_id": setup.job_id,
        "job_attempt": claimed[0].attempt,
        "job_output": "1",
        "worker_id": worker.worker_id,
    }
    parameters["table_oid"] = claimed[0].table_oid
    completed_ids = set(session.scalars(completions.complete_one(Job), parameters))
    if not completed_ids:
        raise Lost
    return completed_ids


def ends_once(connection: Connection, setup: Given, outcomes: Outcomes) -> str:
    job = connection.execute(select(Job.__table__).where(Job.id == setup.job_id)).mappings().one()
    history = list(connection.execute(select(Job.Attempt.__table__).where(Job.Attempt.job_id == setup.job_id)).mappings())
    dead_letters = connection.execute(select(Job.DeadLetter.id).where(Job.DeadLetter.job_id == setup.job_id)).all()
    ended_by = {name for name, outcome in outcomes.items() if outcome.committed and outcome.value}
    assert len(ended_by) == 1, f"ended by {ended_by or 'nobody'}"
    assert dead_letters == []
    assert job["leased_by"] is None
    assert job["completed_at"] is not None
    assert job["chain_completed_at"] == job["completed_at"]
    if job["status"] is JobStatus.COMPLETED:
        assert job["attempt"] == 1
        assert {job["completed_by"]} == {"work": {"batch:1"}, "work-in-session": {"session:1"}}.get(*ended_by)
        assert history == []
        return "completed"
    assert job["status"] is JobStatus.CANCELLED
    assert ended_by == {"cancel"}
    assert [_summary(row) for row in history] == [(1, "cancelled")] * job["attempt"]
    return "cancelled while it ran" if history else "cancelled before it ran"


def _summary(row: Any) -> tuple[int, str]:
    return row["attempt"], row["outcome"]


@pytest.mark.long
def test_a_job_concurrently_claimed_cancelled_and_completed_ends_once(explorer: Explorer) -> None:
    report = explorer.explore(
        Scenario(
            name="claim x cancel x complete",
            setup=one_job,
            operations=[
                Operation("work", work, autocommit=True, settings=GUARDS),
                Operation("work-in-session", work_in_a_session, may_raise=(Lost,), settings=GUARDS),
                Operation("cancel", cancel),
            ],
            check=ends_once,
        )
    )
    assert report.is_complete
    assert report.blocked > 0
    assert set(report.endings) == {"completed", "cancelled while it ran", "cancelled before it ran"}
    assert any("work-in-session=Lost" in kinds for kinds in report.outcomes)
