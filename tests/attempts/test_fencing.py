"""An attempt is owned by one worker: writes for a lost job change nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, cancel_jobs
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.events import JobCompleted
from sa_jobqueue.statements import completions
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.ownership import Ownership
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, ManualWorker, Start, wait_until

pytestmark = [both_servers, pytest.mark.every_python]
MakeWorker = Callable[..., ManualWorker]


Write = Callable[[ManualWorker, Row[Any]], set[Any]]


def _complete_one(worker: ManualWorker, job: Row[Any]) -> set[Any]:
    parameters = {"job_id": job.id, "job_attempt": job.attempt, "job_output": "1", "worker_id": worker.worker_id}
    parameters["table_oid"] = job.table_oid
    written_ids = set(worker.connection.execute(completions.complete_one(worker.model), parameters).scalars())
    worker.connection.commit()
    return written_ids


WRITES: dict[str, Write] = {
    "complete": lambda worker, job: worker.complete(job),
    "complete in a session": _complete_one,
    "fail": lambda worker, job: worker.finish(job),
    "die": lambda worker, job: worker.finish(job, status="dead"),
    "snooze": lambda worker, job: worker.finish(job, outcome="snoozed", uncounted=1),
    "release": lambda worker, job: worker.finish(job, outcome="released", uncounted=1),
    "extend": lambda worker, job: worker.extend(job, timedelta(hours=1)),
}


def _claim_again(worker: ManualWorker) -> Row[Any]:
    claimed_rows: list[Row[Any]] = []

    def claimed() -> bool:
        claimed_rows.extend(worker.claim())
        return bool(claimed_rows)

    wait_until(claimed, description="the job is due again")
    return claimed_rows[0]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_for_a_rescued_attempt_changes_nothing(jobs: Jobs, manual_worker: MakeWorker, write: Write) -> None:
    jobs.add_worker("old:1", silent_for=60)
    jobs.add_worker("new:1")
    job_id = jobs.add()
    old, new = manual_worker("old:1"), manual_worker("new:1")
    (first,) = old.claim()
    assert len(new.rescue()) == 1
    assert write(old, first) == set()  # while it is pending
    second = _claim_again(new)
    before = jobs.get(job_id)
    assert write(old, first) == set()  # while it is another's
    assert jobs.get(job_id) == before
    assert len(jobs.attempts(job_id)) == 1  # of the rescue
    assert write(new, second) == {job_id}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_worker_that_reclaimed_its_lost_job_cannot_end_the_old_attempt(
    jobs: Jobs, manual_worker: MakeWorker, write: Write
) -> None:
    jobs.add_worker("same:1", silent_for=60)
    job_id = jobs.add()
    same = manual_worker("same:1")
    (first,) = same.claim()
    same.rescue()
    second = _claim_again(same)
    assert (first.attempt, second.attempt) == (1, 2)
    assert write(same, first) == set()  # same id, same worker, running: only the attempt differs
    assert jobs.get(job_id)["attempt"] == 2
    assert write(same, second) == {job_id}


def test_a_completion_in_a_session_waits_for_the_rescuer_and_is_then_fenced(jobs: Jobs, manual_worker: MakeWorker) -> None:
    jobs.add_worker("slow:1", silent_for=60)
    job_id = jobs.add()
    slow, rescuer = manual_worker("slow:1"), manual_worker("rescuer:1")
    (job,) = slow.claim()
    assert len(rescuer.rescue(commit=False)) == 1
    completed_sets: list[set[Any]] = []
    waiting = threading.Thread(target=lambda: completed_sets.append(_complete_one(slow, job)))
    waiting.start()
    wait_until(lambda: _is_waiting(rescuer), description="the completion waits for the row")
    rescuer.connection.commit()
    waiting.join(timeout=PATIENCE)
    assert completed_sets == [set()]
    assert jobs.status(job_id) is JobStatus.PENDING


def _is_waiting(observer: ManualWorker) -> bool:
    return bool(observer.connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def test_a_cancellation_fences_the_attempt(engine: Engine, jobs: Jobs, manual_worker: MakeWorker) -> None:
    job_id = jobs.add()
    worker = manual_worker()
    (job,) = worker.claim()
    assert call(engine, cancel_jobs, [job_id]).ids == [job_id]
    assert worker.complete(job) == set()
    assert worker.finish(job) == set()
    assert jobs.status(job_id) is JobStatus.CANCELLED
    assert [row["outcome"] for row in jobs.attempts(job_id)] == ["cancelled"]


def test_lost_jobs_in_a_batch_of_completions_do_not_affect_the_others(
    jobs: Jobs, manual_worker: MakeWorker, engine: Engine
) -> None:
    ids = jobs.add_many(6)
    worker = manual_worker()
    claimed_jobs = worker.claim()
    call(engine, cancel_jobs, ids[:2])
    assert worker.complete(*claimed_jobs, output='{"n": 1}') == set(ids[2:])
    assert {jobs.get(job_id)["output"]["n"] for job_id in ids[2:]} == {1}


def test_the_last_lost_attempt_is_a_dead_letter_that_names_the_worker(jobs: Jobs, manual_worker: MakeWorker) -> None:
    jobs.add_worker("gone:1", silent_for=60)
    job_id = jobs.add(max_attempts=1)
    manual_worker("gone:1").claim()
    (rescued,) = manual_worker("rescuer:1").rescue()
    assert (rescued.id, rescued.status, rescued.worker_id) == (job_id, "dead", "gone:1")
    (dead_letter,) = jobs.dead_letters(job_id)
    assert (dead_letter["reason"], dead_letter["error"]["worker"], dead_letter["attempts"]) == ("lost", "gone:1", 1)
    (attempt,) = jobs.attempts(job_id)
    assert (attempt["outcome"], attempt["worker_id"]) == ("lost", "gone:1")


async def test_an_earlier_attempt_is_stopped_before_its_own_worker_begins_the_next(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    """As after a rescue that the worker was not notified of."""
    queue: JobQueue[Any] = JobQueue()
    steps: list[str] = []
    began = asyncio.Event()

    @queue.handler("test")
    async def test(payload: Any, ctx: AttemptContext) -> None:
        steps.append(f"{ctx.attempt} begins")
        began.set()
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
        finally:
            steps.append(f"{ctx.attempt} ends")

    job_id = jobs.add()
    async with start(queue, listen=False) as log:
        await asyncio.wait_for(began.wait(), PATIENCE)
        with engine.begin() as connection:
            rescued = "UPDATE job SET status = 'pending', leased_by = NULL, leased_until = NULL WHERE id = :id"
            connection.execute(text(rescued), {"id": job_id})
        await log.until(JobCompleted)
    assert steps == ["1 begins", "1 ends", "2 begins", "2 ends"]


async def test_an_earlier_attempt_is_lost_although_the_same_worker_completed_a_later_one(
    jobs: Jobs, manual_worker: MakeWorker, async_engine: AsyncEngine
) -> None:
    jobs.add_worker("old:1", silent_for=60)
    jobs.add_worker("new:1")
    job_id = jobs.add()
    worker = manual_worker("old:1")
    (first,) = worker.claim()
    assert len(manual_worker("new:1").rescue()) == 1
    second = _claim_again(worker)
    assert worker.complete(second) == {job_id}
    attempts = [ClaimedJob._make(getattr(row, name, None) for name in ClaimedJob._fields) for row in (first, second)]
    ownership = Ownership(async_engine, Job, "old:1")
    assert [await ownership.lost([attempt]) for attempt in attempts] == [{job_id: CancelReason.COMPLETED}, {}]
