"""Claims, by exact interleaving of two or more sessions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import cast

from sqlalchemy import Engine, Table, insert, text

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.ids import uuid7
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import ManualWorker

pytestmark = both_servers
MakeWorker = Callable[..., ManualWorker]
TABLE = cast("Table", Job.__table__)


def _row(**columns: object) -> dict[str, object]:
    job_id = uuid7()
    return {"id": job_id, "chain_id": job_id, "type_name": "test", "chain_type_name": "test"} | columns


def test_a_claim_counts_the_attempt_and_takes_the_lease(jobs: Jobs, manual_worker: MakeWorker) -> None:
    job_id = jobs.add(timeout=timedelta(seconds=30))
    manual_worker("first:1").claim()
    row = jobs.get(job_id)
    assert (row["status"], row["attempt"], row["leased_by"]) == (JobStatus.RUNNING, 1, "first:1")
    assert row["leased_until"] - row["started_at"] == timedelta(seconds=45)  # its timeout, and the grace


def test_a_job_committed_late_is_found_behind_the_cursor(engine: Engine, jobs: Jobs, manual_worker: MakeWorker) -> None:
    worker = manual_worker()
    with engine.connect() as slow:
        late = _row()
        slow.execute(insert(TABLE).values(late), execution_options={})
        on_time = jobs.add()
        assert [job.id for job in worker.claim()] == [on_time]  # the cursor is past the late job's time now
        slow.commit()
    # Without catch-up it is missed: this is what catch-up is for.
    assert worker.claim(catch_up=False) == []
    assert [job.id for job in worker.claim(catch_up=True)] == [late["id"]]


def test_a_job_of_a_savepoint_committed_late_is_found(engine: Engine, jobs: Jobs, manual_worker: MakeWorker) -> None:
    worker = manual_worker()
    with engine.connect() as slow:
        late = _row()
        with slow.begin():
            with slow.begin_nested():
                slow.execute(insert(TABLE).values(late))
            jobs.add()
            assert len(worker.claim()) == 1
    assert [job.id for job in worker.claim()] == [late["id"]]


def test_a_retry_scheduled_in_the_past_is_found_behind_the_cursor(jobs: Jobs, manual_worker: MakeWorker) -> None:
    worker = manual_worker()
    job_id = jobs.add(due_in=-10)
    jobs.add()
    claimed = worker.claim()
    assert len(claimed) == 2
    worker.finish(next(job for job in claimed if job.id == job_id), delay=-3600)
    assert [job.id for job in worker.claim()] == [job_id]


def test_jobs_rescheduled_or_moved_in_sql_are_found_behind_the_cursor(
    engine: Engine, jobs: Jobs, manual_worker: MakeWorker
) -> None:
    worker = manual_worker()
    later, elsewhere, lazy = jobs.add(due_in=3600), jobs.add(queue="other", due_in=-50), jobs.add(priority=-9, due_in=3600)
    jobs.add()
    worker.claim()
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET scheduled_at = now() - interval '1 hour' WHERE id = :id"), {"id": later})
        connection.execute(text("UPDATE job SET queue = 'default' WHERE id = :id"), {"id": elsewhere})
        connection.execute(
            text("UPDATE job SET priority = 9, scheduled_at = now() - interval '1 day' WHERE id = :id"), {"id": lazy}
        )
    assert worker.claim(catch_up=False) == []
    assert {job.id for job in worker.claim()} == {later, elsewhere, lazy}


def test_a_job_skipped_because_of_a_rolled_back_claim_is_found_by_the_next_full_scan(
    jobs: Jobs, manual_worker: MakeWorker
) -> None:
    held_id, free = jobs.add(due_in=-5), jobs.add(due_in=-1)
    failing, worker = manual_worker("failing:1"), manual_worker("worker:1")
    assert [job.id for job in failing.claim(1, commit=False)] == [held_id]
    assert [job.id for job in worker.claim()] == [free]
    failing.connection.rollback()
    assert worker.claim() == []  # behind the cursor, and not written since: the one gap of the method
    worker.reset()
    assert [job.id for job in worker.claim()] == [held_id]
