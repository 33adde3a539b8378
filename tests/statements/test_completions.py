"""The ends of attempts: what they write, and for whom they write nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, insert, select, update
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.ids import uuid7
from sa_jobqueue.statements import completions
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.statements.cases import complete_parameters, dying, finish_parameters
from tests.statements.conftest import Run

pytestmark = both_servers

COMPLETE = completions.complete(Job)
FINISH = completions.finish(Job)

RUNNING, PENDING, COMPLETED = JobStatus.RUNNING, JobStatus.PENDING, JobStatus.COMPLETED


def running(jobs: Jobs, count: int = 1, **columns: Any) -> list[UUID]:
    return [jobs.add(RUNNING, **columns) for _ in range(count)]


def ids(rows: list[Any]) -> list[Any]:
    return sorted(row[0] for row in rows)


@pytest.fixture
def stale(jobs: Jobs) -> dict[str, UUID]:
    """Give jobs whose first attempt is not `WORKER`'s to end, each for another reason."""
    return {
        "of another worker": jobs.add(RUNNING, worker_id="other"),
        "another attempt": jobs.add(RUNNING, attempt=2),
        "pending again": jobs.add(PENDING, attempt=1),
        "cancelled": jobs.add(JobStatus.CANCELLED),
        "completed": jobs.add(COMPLETED),
        "dead": jobs.add(JobStatus.DEAD),
        "deleted": uuid7(),
    }


def test_each_job_is_completed_with_its_own_output(jobs: Jobs, run: Run) -> None:
    job_ids = running(jobs, 3)
    outputs = ['{"n": 1}', "null", "[2]"]
    assert ids(run(COMPLETE, complete_parameters(job_ids) | {"outputs": outputs})) == sorted(job_ids)
    rows = [jobs.get(job_id) for job_id in job_ids]
    assert [row["output"] for row in rows] == [{"n": 1}, None, [2]]
    for row in rows:
        assert (row["status"], row["completed_by"]) == (COMPLETED, WORKER)
        assert row["completed_at"] == row["chain_completed_at"] is not None
        assert row["leased_by"] is row["leased_until"] is row["last_error"] is None


@pytest.mark.parametrize("statement", ["complete", "finish", "die", "complete_one"])
def test_a_stale_attempt_writes_nothing(jobs: Jobs, run: Run, stale: dict[str, UUID], statement: str) -> None:
    (ours,) = running(jobs)
    before = {why: dict(jobs.get(job_id)) for why, job_id in stale.items() if why != "deleted"}
    history = {job_id: len(jobs.attempts(job_id)) for job_id in stale.values()}
    every = sorted([*stale.values(), ours])
    if statement == "complete":
        assert ids(run(COMPLETE, complete_parameters(every))) == [ours]
    elif statement == "complete_one":
        ((table,),) = run(select(func.to_regclass("job").cast(OID)))
        for job_id in every:
            parameters = {"job_id": job_id, "job_attempt": 1, "job_output": "1", "worker_id": WORKER, "table_oid": table}
            assert ids(run(completions.complete_one(Job), parameters)) == ([ours] if job_id == ours else [])
    else:
        parameters = finish_parameters(every) if statement == "finish" else dying(every)
        assert ids(run(FINISH, parameters)) == [ours]
    assert jobs.status(ours) is not RUNNING
    for why, row in before.items():
        assert dict(jobs.get(stale[why])) == row, why
    assert {job_id: len(jobs.attempts(job_id)) for job_id in stale.values()} == history


@pytest.mark.parametrize(("statement", "parameters"), [(COMPLETE, complete_parameters), (FINISH, finish_parameters)])
def test_a_locked_row_does_not_delay_the_rest_of_a_batch(
    jobs: Jobs, run: Run, session: Session, statement: Any, parameters: Any
) -> None:
    locked_id, free = running(jobs, 2)
    session.execute(select(Job.id).where(Job.id == locked_id).with_for_update())
    assert ids(run(statement, parameters(sorted([locked_id, free])))) == [free]
    assert jobs.status(locked_id) is RUNNING
    session.rollback()
    assert ids(run(statement, parameters([locked_id]))) == [locked_id]


@pytest.mark.parametrize(("statement", "parameters"), [(COMPLETE, complete_parameters), (FINISH, finish_parameters)])
def test_a_row_locked_only_by_a_foreign_key_is_written(
    jobs: Jobs, run: Run, session: Session, statement: Any, parameters: Any
) -> None:
    (job_id,) = running(jobs)
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update(key_share=True, read=True))
    assert ids(run(statement, parameters([job_id]))) == [job_id]


def test_only_completing_a_root_completes_a_chain_in_the_same_statement(jobs: Jobs, run: Run, engine: Engine) -> None:
    (root,) = running(jobs)
    continuation = uuid7()
    row = {"id": continuation, "chain_id": root, "chain_index": 1, "type_name": "b", "chain_type_name": "test"}
    with engine.begin() as connection:
        connection.execute(insert(Job.__table__).values(row))  # type: ignore[arg-type]
        connection.execute(
            update(Job.__table__)  # type: ignore[arg-type]
            .where(Job.id == continuation)
            .values(status=RUNNING, attempt=1, leased_by=WORKER)
        )
    run(COMPLETE, complete_parameters([continuation]))
    assert jobs.get(continuation)["chain_completed_at"] is None
    assert jobs.get(root)["chain_completed_at"] is None


def test_a_job_rescheduled_to_an_instant_is_due_then_or_at_once_if_past(jobs: Jobs, run: Run) -> None:
    ids = running(jobs, 3)
    future = datetime(2099, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    run(FINISH, finish_parameters(ids, delays=[0.0, 0.0, 60.0], ats=[future, datetime(2020, 1, 1, tzinfo=UTC), None]))
    due = [jobs.get(job_id)["scheduled_at"] for job_id in ids]
    (now,) = {jobs.attempts(job_id)[0]["ended_at"] for job_id in ids}
    assert due == [future, now, now + timedelta(minutes=1)]


def test_a_failed_attempt_is_recorded_and_retried_after_its_backoff(jobs: Jobs, run: Run) -> None:
    (job_id,) = running(jobs)
    started = jobs.get(job_id)["started_at"]
    error = {"type": "E", "message": "m", "traceback": ""}
    rows = run(FINISH, finish_parameters([job_id], delays=[90.5]))
    assert [tuple(row) for row in rows] == [(job_id, PENDING, job_id, False)]
    job = jobs.get(job_id)
    (attempt,) = jobs.attempts(job_id)
    assert (job["status"], job["attempt"], job["max_attempts"], job["last_error"]) == (PENDING, 1, 20, error)
    assert job["scheduled_at"] == attempt["ended_at"] + timedelta(seconds=90.5)
    assert job["leased_by"] is job["leased_until"] is job["completed_at"] is None
    assert (attempt["attempt"], attempt["worker_id"], attempt["started_at"]) == (1, WORKER, started)
    assert (attempt["outcome"], attempt["error"], attempt["error_fingerprint"]) == ("failed", error, "f")
    assert attempt["changed_xid"] == job["changed_xid"]
    assert jobs.dead_letters() == []


def test_an_uncounted_attempt_raises_max_attempts_and_keeps_the_last_error(jobs: Jobs, run: Run) -> None:
    (job_id,) = running(jobs, last_error={"type": "Before"})
    run(FINISH, finish_parameters([job_id], outcomes=["snoozed"], errors=[None], fingerprints=[None], uncounted=[1]))
    job = jobs.get(job_id)
    assert (job["attempt"], job["max_attempts"], job["last_error"]) == (1, 21, {"type": "Before"})
    assert jobs.attempts(job_id)[0]["error"] is None


def test_a_job_that_dies_leaves_a_dead_letter(jobs: Jobs, run: Run) -> None:
    job_id = jobs.add(RUNNING, input={"n": 1}, input_version=3, queue="mail", type_name="send", attempt=1)
    due = jobs.get(job_id)["scheduled_at"]
    parameters = dying([job_id])
    assert [tuple(row) for row in run(FINISH, parameters)] == [(job_id, JobStatus.DEAD, job_id, False)]
    job, (dead_letter,) = jobs.get(job_id), jobs.dead_letters(job_id)
    assert job["completed_at"] == job["chain_completed_at"] == dead_letter["died_at"]
    assert (job["completed_by"], job["scheduled_at"]) == (None, due)
    assert (dead_letter["id"], dead_letter["chain_id"], dead_letter["queue"], dead_letter["type_name"]) == (
        parameters["dead_letter_ids"][0],
        job_id,
        "mail",
        "send",
    )
    assert (dead_letter["input"], dead_letter["input_version"], dead_letter["attempts"]) == ({"n": 1}, 3, 1)
    assert (dead_letter["reason"], dead_letter["error"], dead_letter["error_fingerprint"]) == (
        "exhausted",
        job["last_error"],
        "f",
    )
    assert dead_letter["resolution"] is dead_letter["resolved_at"] is None
    assert jobs.attempts(job_id)[0]["outcome"] == "failed"


def test_one_statement_ends_attempts_with_different_outcomes(jobs: Jobs, run: Run) -> None:
    retried, died, cancelled, lost = job_ids = sorted(running(jobs, 4))
    parameters = finish_parameters(
        job_ids,
        attempts=[1, 1, 1, 2],
        statuses=["pending", "dead", "cancelled", "dead"],
        delays=[60.0, 0.0, 0.0, 0.0],
        outcomes=["timed_out", "failed", "cancelled", "failed"],
        errors=['{"type": "A"}', '{"type": "B"}', None, '{"type": "D"}'],
        fingerprints=["a", "b", None, "d"],
        reasons=[None, "discarded", None, "exhausted"],
        dead_letter_ids=[None, uuid7(), None, uuid7()],
    )
    rows = run(FINISH, parameters)
    assert {row[0]: row[1] for row in rows} == {
        retried: PENDING,
        died: JobStatus.DEAD,
        cancelled: JobStatus.CANCELLED,
    }
    assert [jobs.get(job_id)["last_error"] for job_id in job_ids] == [{"type": "A"}, {"type": "B"}, None, None]
    assert [(dead_letter["job_id"], dead_letter["reason"]) for dead_letter in jobs.dead_letters()] == [(died, "discarded")]
    assert jobs.status(lost) is RUNNING
