"""The end of a chain reaches everybody who waits for it, also where several jobs of one chain do."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus, cancel_jobs, get_chain
from sa_jobqueue.context import Continuation
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import blockers, complete_job, completions
from sa_jobqueue.types import JobId
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import call, write

pytestmark = both_servers


def add(sessions: sessionmaker[Session], *blockers: WaitFor) -> UUID:
    """Enqueue a job and return its id."""
    with sessions.begin() as session:
        job = Job("test", blockers=blockers)
        session.add(job)
        job_id: UUID = job.id
    return job_id


def chain_that_waits_twice(sessions: sessionmaker[Session], first: WaitFor, then: WaitFor) -> UUID:
    """Complete a blocked job without a worker, and go on with one that waits as well; return the chain's id."""
    chain_id = add(sessions, first)
    call(sessions, complete_job, chain_id, Continuation(Job("following", blockers=[then])))
    return chain_id


@pytest.mark.parametrize("policy", ["wait", "fail"])
def test_a_chain_dies_with_its_continuation_when_its_root_waited_for_the_same_chain(
    sessions: sessionmaker[Session], jobs: Jobs, policy: str
) -> None:
    failing = jobs.add()
    chain_id = chain_that_waits_twice(
        sessions,
        WaitFor(failing, policy),  # type: ignore[arg-type]
        WaitFor(failing, "fail"),
    )
    waiting = add(sessions, WaitFor(chain_id, "fail"))
    call(sessions, cancel_jobs, [failing])
    with sessions() as session:
        chain = get_chain(session, chain_id)
        assert (chain.status, chain.length) == (JobStatus.DEAD, 2)
        assert chain.completed_at is not None
    assert jobs.status(waiting) is JobStatus.DEAD  # jobs that wait for that chain are unblocked as well


def test_a_chain_dies_with_its_continuation_when_both_blockers_end_together(
    sessions: sessionmaker[Session], jobs: Jobs
) -> None:
    passing, failing = jobs.add(), jobs.add()
    chain_id = chain_that_waits_twice(sessions, WaitFor(passing, "continue"), WaitFor(failing, "fail"))
    call(sessions, cancel_jobs, [passing, failing])
    root = jobs.get(chain_id)
    assert (root["status"], root["open_blockers"], root["chain_status"]) == (JobStatus.COMPLETED, 0, JobStatus.DEAD)
    assert root["chain_completed_at"] is not None


def test_workers_are_notified_of_chains_ended_by_callers_that_may_block_others(
    sessions: sessionmaker[Session], engine: Engine, jobs: Jobs, notifications: Notifications
) -> None:
    plain, ordered, awaited, served = jobs.add(), jobs.add(ordering_key="k"), jobs.add(), jobs.add(JobStatus.RUNNING)
    add(sessions, WaitFor(awaited, "continue"), WaitFor(served, "continue"))
    notifications.seen()

    def notified(statement: str, job_id: UUID) -> bool:
        write(engine, f"UPDATE job SET {statement} WHERE id = :id", {"id": job_id})
        return ("unblock", "") in notifications.seen()

    cancelled = "status = 'cancelled', completed_at = now(), chain_completed_at = now()"
    completed = "status = 'completed', completed_at = now(), chain_completed_at = now(), completed_by = leased_by"
    assert not notified(cancelled, plain)
    assert notified(cancelled, ordered)
    assert notified(cancelled, awaited)
    assert not notified(f"{completed}, leased_by = NULL", served)  # its worker passes the end on itself
    assert notified("has_waiters = true", plain)


@pytest.mark.parametrize("locked", [[], [0], [3, 4], [9]])
def test_of_more_waiting_jobs_than_a_batch_each_is_unblocked_once_and_the_locked_ones_later(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, locked: list[int]
) -> None:
    chain_ids = enqueue(engine, Job("test"), Job("test"))
    waiting = enqueue(engine, *(Job("waits", blockers=[chain_ids[number % 2]]) for number in range(10)))
    with monkeypatch.context() as patch:  # as a worker ends chains: what waits for them is unblocked afterwards
        patch.setattr(completions, "unblock_all", lambda *arguments: None)
        for chain_id in chain_ids:
            call(engine, complete_job, chain_id)
    monkeypatch.setattr(blockers, "BATCH", 2)
    monkeypatch.setattr(blockers, "ROUNDS", 2)
    remaining: dict[JobId, JobId | None] = dict.fromkeys(chain_ids)
    moved: list[JobId] = []

    def unblock_in_turns() -> None:
        nonlocal remaining
        for _ in waiting:
            with engine.begin() as connection:
                unblocked = blockers.unblock(connection, Job, remaining)
            remaining = unblocked.unfinished
            moved.extend(job.job_id for job in unblocked.moved)

    with engine.connect() as holder:
        holder.execute(select(Job.id).where(Job.id.in_([waiting[number] for number in locked])).with_for_update())
        unblock_in_turns()
        assert set(moved) == {job_id for number, job_id in enumerate(waiting) if number not in locked}
        assert remaining.keys() == {chain_ids[number % 2] for number in locked}
    unblock_in_turns()
    assert remaining == {}
    assert sorted(moved) == sorted(waiting)
    assert {jobs.status(job_id) for job_id in waiting} == {JobStatus.PENDING}
