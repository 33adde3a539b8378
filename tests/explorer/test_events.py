"""An attempt begins to wait for an event that is sent, sent twice or rolled back, or while its job is cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, true
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, cancel_jobs
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.errors import LostAttemptError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import send_event
from sa_jobqueue.operations.completions import Finished, finish_parameters
from sa_jobqueue.operations.steps import record_step
from sa_jobqueue.statements import completions, steps
from sa_jobqueue.types import AttemptOutcome, StepKind
from tests.explorer import Explorer, Operation, Outcomes, Report, Scenario, ScheduleFailed, Steps
from tests.explorer.workers import SessionWorker

HOUR = timedelta(hours=1)


@dataclass
class Given:
    """Two running jobs in a queue of one schedule, and the event that they are about to wait for."""

    event: str
    worker_id: str
    jobs: Sequence[Any]


def setup(session: Session) -> Given:
    queue = f"q{uuid7()}"
    session.add_all([Job("test", queue=queue), Job("test", queue=queue)])
    session.flush()
    worker = SessionWorker(session, f"{queue}:0", queues=(queue,))
    return Given(f"approved:{queue}", worker.worker_id, [*worker.claim(), *worker.claim()])


def waits(number: int = 0) -> Operation[Given]:
    """Return the transaction in which an attempt begins to wait, as `wait_for` sends it, a statement a step."""

    def wait(session: Session, setup: Given) -> Steps:
        job = setup.jobs[number]
        if not session.execute(steps.lock_event(Job), {"event": setup.event}).scalar_one():
            session.rollback()
            return "looks again"
        yield "lock the name"
        row = session.execute(steps.event_sent(Job), {"event": setup.event}).one()
        yield "look for the event"
        if row.name is not None:
            session.rollback()
            return f"got {row.payload}"
        wait: dict[str, Any] = {
            "event": setup.event,
            "is_over": False,
            "took": HOUR,
            "kind": StepKind.WAIT,
            "place": ("approval", ""),
        }
        deadline = record_step(session, Job, job, setup.worker_id, **wait)
        yield "record the wait"
        end = Finished(job, JobStatus.PENDING, AttemptOutcome.SNOOZED, at=deadline, uncounted=True)
        ended = session.execute(
            completions.finish(Job), finish_parameters([end], worker_id=setup.worker_id, model=Job)
        ).first()
        if ended is None:
            session.rollback()
            return "looks again"
        yield "end the attempt"
        return "waits"

    return Operation(f"wait{number}", wait, settings=GUARDS, may_raise=(LostAttemptError,))


def sends(payload: int = 1, *, commits: bool = True) -> Operation[Given]:
    """Return a sender's transaction."""

    def send(session: Session, setup: Given) -> Steps:
        is_first = send_event(session, setup.event, payload)
        yield "send"
        if not commits:
            session.rollback()
        return is_first

    return Operation(f"send{payload}", send)


def cancels() -> Operation[Given]:
    """Return the cancelling of the first job."""

    def cancel(session: Session, setup: Given) -> Steps:
        cancel_jobs(session, [setup.jobs[0].id])
        yield "cancel"

    return Operation("cancel", cancel)


def nobody_is_stranded(connection: Connection, setup: Given, outcomes: Outcomes) -> str:
    """Check that a job which waits is due if the event was sent, and only then; return how the first one's wait went."""
    sent = connection.execute(select(Job.Event.payload).where(Job.Event.name == setup.event)).scalar_one_or_none()
    endings = []
    for number, job in enumerate(setup.jobs):
        job_row = connection.execute(select(Job.status, Job.scheduled_at <= func.now()).where(Job.id == job.id)).one()
        wait = outcomes.get(f"wait{number}")
        if wait is None:
            continue
        ended = wait.kind if wait.error is not None else str(wait.value)
        if ended == "waits" and job_row[0] is not JobStatus.CANCELLED:
            assert (job_row[0], job_row[1]) == (JobStatus.PENDING, sent is not None), (
                "a waiter is stranded, or woken for nothing"
            )
        elif ended.startswith("got"):
            assert ended == f"got {sent}"
        endings.append(ended)
    return " ".join(endings)


def explored(explorer: Explorer, *operations: Operation[Given], sample: tuple[int, int] | None = None) -> Report:
    name = " x ".join(operation.name for operation in operations)
    scenario = Scenario(name=name, setup=setup, operations=operations, check=nobody_is_stranded)
    report = explorer.explore(scenario, sample=sample)
    assert report.is_complete or sample is not None
    return report


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
def test_a_wait_that_begins_while_the_event_is_sent_is_never_stranded(explorer: Explorer, commits: bool) -> None:
    report = explored(explorer, waits(), sends(commits=commits))
    assert {"waits", "looks again"} <= set(report.endings) <= {"waits", "looks again", "got 1"}
    assert ("got 1" in report.endings) is commits


def test_without_the_lock_of_the_name_some_order_strands_a_waiter(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "lock_event", lambda model: select(true()))
    with pytest.raises(ScheduleFailed):
        explored(explorer, waits(), sends())


@pytest.mark.long
def test_two_jobs_wait_for_one_event(explorer: Explorer) -> None:
    report = explored(explorer, waits(0), waits(1), sends(), sample=(60, 1))
    assert "waits waits" in report.endings


@pytest.mark.long
def test_of_two_senders_the_first_to_commit_counts(explorer: Explorer) -> None:
    explored(explorer, waits(), sends(1), sends(2))


@pytest.mark.long
def test_a_job_is_cancelled_while_it_begins_to_wait_and_the_event_is_sent(explorer: Explorer) -> None:
    report = explored(explorer, waits(), sends(), cancels())
    assert "waits" in report.endings
