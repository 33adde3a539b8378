"""Live and lost workers, and the rescue of their jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.operations.workers import Rescued
from sa_jobqueue.operations.workers import rescue as rescue_lost
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.statements import leases
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.statements.cases import extend_parameters, heartbeat_parameters
from tests.statements.conftest import Run

pytestmark = both_servers

HEARTBEAT, EXTEND = leases.heartbeat(Job), leases.extend(Job)
RUNNING = JobStatus.RUNNING
TTL = timedelta(seconds=15)


def workers(run: Run) -> dict[str, Any]:
    return {row.id: row for row in run(text("SELECT * FROM worker"))}


def expire(engine: Engine, job_id: UUID) -> None:
    """Let a job's own lease have run out a moment ago."""
    with engine.begin() as connection:
        ended = text("now() - interval '1 ms'")
        connection.execute(update(Job.__table__).where(Job.id == job_id).values(leased_until=ended))  # type: ignore[arg-type]


def rescue(engine: Engine, *, backoff: Backoff = Backoff(), **parameters: Any) -> list[Rescued]:
    """Rescue once, as a worker with a heartbeat timeout of 15 s."""
    with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
        return rescue_lost(connection, Job, {"limit": 100} | parameters, backoff)


def rescued_ids(rows: list[Rescued]) -> list[Any]:
    return sorted(row.id for row in rows)


def test_the_first_heartbeat_registers_a_worker_and_later_ones_update_its_time(run: Run) -> None:
    run(HEARTBEAT, heartbeat_parameters())
    first = workers(run)[WORKER]
    assert (first.name, first.host, first.pid, first.queues, first.concurrency) == ("tester", "here", 1, ["default"], 10)
    run(HEARTBEAT, heartbeat_parameters(state="draining", name="renamed"))
    second = workers(run)[WORKER]
    assert second.heartbeat_at > first.heartbeat_at
    assert second.started_at == first.started_at
    assert (second.state, second.name) == ("draining", "tester")


def test_a_worker_holding_leases_is_not_deleted(run: Run, jobs: Jobs) -> None:
    for worker_id in (WORKER, "idle"):
        jobs.add_worker(worker_id, silent_for=999)
    jobs.add(RUNNING)
    for worker_id in (WORKER, "idle"):
        run(leases.forget_worker(Job), {"worker_id": worker_id})
    assert set(workers(run)) == {WORKER}
    run(leases.forget_dead_workers(Job), {"gone_after": timedelta(0)})
    assert set(workers(run)) == {WORKER}


def test_workers_without_heartbeats_are_deleted(run: Run, jobs: Jobs) -> None:
    jobs.add_worker("gone", silent_for=61)
    jobs.add_worker("quiet", silent_for=30)
    run(leases.forget_dead_workers(Job), {"gone_after": timedelta(minutes=1)})
    assert set(workers(run)) == {"quiet"}


def test_only_an_own_lease_can_be_extended(run: Run, jobs: Jobs) -> None:
    for job_id in (
        jobs.add(RUNNING, worker_id="other"),
        jobs.add(RUNNING, attempt=2),
        jobs.add(attempt=1),
        jobs.add(JobStatus.COMPLETED),
    ):
        assert run(EXTEND, extend_parameters(job_id)) == []
        assert jobs.get(job_id)["leased_until"] is None


def test_jobs_of_a_silent_worker_are_rescued(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(silent_for=20)
    jobs.add_worker("alive", silent_for=5)
    lost, leased_id = jobs.add(RUNNING, type_name="send"), jobs.add(RUNNING, worker_id="alive")
    started = jobs.get(lost)["started_at"]
    (row,) = rescue(engine, ttl=TTL)
    assert tuple(row) == (lost, "send", 1, JobStatus.PENDING, WORKER, lost, False)
    job, (attempt,) = jobs.get(lost), jobs.attempts(lost)
    assert job["leased_by"] is job["leased_until"] is job["completed_at"] is None
    assert (job["attempt"], job["max_attempts"]) == (1, 20)
    assert job["last_error"] == attempt["error"]
    assert attempt["error"] == {"type": "Lost", "message": f"worker {WORKER} stopped sending heartbeats", "worker": WORKER}
    assert (attempt["outcome"], attempt["worker_id"], attempt["started_at"]) == ("lost", WORKER, started)
    assert attempt["error_fingerprint"] == "lost"
    assert jobs.status(leased_id) is RUNNING
    assert jobs.dead_letters() == []


def test_an_expired_lease_is_rescued_from_a_live_worker(run: Run, jobs: Jobs, engine: Engine) -> None:
    jobs.add_worker()
    late, within, endless = (jobs.add(RUNNING) for _ in range(3))
    expire(engine, late)
    run(EXTEND, extend_parameters(within))
    assert rescued_ids(rescue(engine, ttl=TTL)) == [late]
    assert jobs.get(late)["last_error"]["message"] == f"worker {WORKER} did not renew the lease in time"
    assert jobs.status(within) is jobs.status(endless) is RUNNING


def test_a_lease_is_not_extended_between_the_search_for_lost_jobs_and_their_rescue(
    jobs: Jobs, engine: Engine, session: Session
) -> None:
    jobs.add_worker()
    late = jobs.add(RUNNING)
    expire(engine, late)
    parameters = {"ttl": TTL, "limit": 100}
    assert [row.id for row in session.execute(leases.lost(Job), parameters)] == [late]
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            connection.execute(EXTEND, extend_parameters(late))


def test_a_rescued_job_waits_at_most_its_backoff(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(silent_for=60)
    attempt_by_id = {jobs.add(RUNNING, attempt=attempt, max_attempts=100): attempt for attempt in (1, 2, 3, 8, *[80] * 10)}
    waits = []
    backoff = Backoff(base=timedelta(seconds=2), cap=timedelta(seconds=100))
    assert rescued_ids(rescue(engine, ttl=TTL, backoff=backoff)) == sorted(attempt_by_id)
    for job_id, attempt in attempt_by_id.items():
        wait = (jobs.get(job_id)["scheduled_at"] - jobs.attempts(job_id)[0]["ended_at"]).total_seconds()
        assert 0 <= wait <= min(100.0, 2.0 * 2 ** (attempt - 1))
        waits.append(wait)
    assert max(waits) > 1  # by chance all of them are shorter once in 10^20 times
    assert len(set(waits)) == len(waits)  # so that those who fell together do not come back together


def test_a_job_lost_in_its_last_attempt_dies(jobs: Jobs, engine: Engine) -> None:
    jobs.add_worker(silent_for=60)
    jobs.add_worker("alive")
    lost = jobs.add(RUNNING, max_attempts=1, input={"n": 1})
    late = jobs.add(RUNNING, max_attempts=1, worker_id="alive")
    expire(engine, late)
    rows = rescue(engine, ttl=TTL)
    assert {row.id: row.status for row in rows} == dict.fromkeys((lost, late), JobStatus.DEAD)
    for job_id, reason in ((lost, "lost"), (late, "timed_out")):
        job, (dead_letter,) = jobs.get(job_id), jobs.dead_letters(job_id)
        assert job["completed_at"] == job["chain_completed_at"] == dead_letter["died_at"]
        assert job["leased_by"] is None
        assert (dead_letter["reason"], dead_letter["error_fingerprint"], dead_letter["attempts"]) == (reason, reason, 1)
        assert dead_letter["error"] == job["last_error"]
    assert jobs.dead_letters(lost)[0]["input"] == {"n": 1}


def test_each_job_that_dies_in_a_rescue_has_its_own_dead_letter(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(silent_for=60)
    job_ids = [jobs.add(RUNNING, max_attempts=1 + number % 2) for number in range(10)]
    rescue(engine, ttl=TTL)
    dead_letters = jobs.dead_letters()
    assert {dead_letter["job_id"] for dead_letter in dead_letters} == set(job_ids[::2])
    assert len({dead_letter["id"] for dead_letter in dead_letters}) == 5
    assert all(len(jobs.attempts(job_id)) == 1 for job_id in job_ids)


def test_a_rescue_takes_at_most_its_limit(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(silent_for=60)
    for _ in range(5):
        jobs.add(RUNNING)
    counts = [len(rescue(engine, ttl=TTL, limit=2)) for _ in range(4)]
    assert counts == [2, 2, 1, 0]


def test_locked_rows_are_left_to_the_next_rescue(engine: Engine, jobs: Jobs, session: Session) -> None:
    """Their worker may be just writing: a silent one is not always a dead one."""
    jobs.add_worker(silent_for=60)
    locked_id, free = jobs.add(RUNNING), jobs.add(RUNNING)
    session.execute(select(Job.id).where(Job.id == locked_id).with_for_update())
    assert rescued_ids(rescue(engine, ttl=TTL)) == [free]
    session.rollback()
    assert rescued_ids(rescue(engine, ttl=TTL)) == [locked_id]


def test_orphans_are_jobs_whose_worker_has_no_row(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("silent", silent_for=999)
    orphan, other_ids = jobs.add(RUNNING, worker_id="never"), jobs.add(RUNNING, worker_id="silent")
    assert rescue(engine, ttl=timedelta(days=1)) == []
    assert rescued_ids(rescue(engine)) == [orphan]
    assert jobs.get(orphan)["last_error"]["worker"] == "never"
    assert jobs.status(other_ids) is RUNNING
