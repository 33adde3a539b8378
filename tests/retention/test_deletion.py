"""Chains deleted, with the chains they wait for, and no reference left to deleted rows."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, insert, inspect, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, errors, get_job
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import delete_chains, redrive_dead_letters
from tests.fixtures.chains import continuation, edges, wait_for
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import write

pytestmark = both_servers


# What goes.


def test_a_chain_is_deleted_with_all_its_jobs_in_any_status(session: Session, jobs: Jobs) -> None:
    chains = [jobs.add(status) for status in JobStatus]
    continuation(jobs, chains[0])
    continuation(jobs, chains[0], 2, JobStatus.RUNNING)
    stays = jobs.add()
    assert delete_chains(session, [chains[0], *reversed(chains)]).ids == chains
    assert len(jobs.statuses()) == len(chains) + 3
    session.commit()
    assert set(jobs.statuses()) == {stays}


def test_deletion_removes_attempts_and_dismisses_dead_letters(session: Session, jobs: Jobs) -> None:
    chain_id = jobs.add(JobStatus.DEAD)
    other_id = jobs.add(JobStatus.DEAD)
    with session.begin():
        for job_id in (chain_id, other_id):
            session.execute(insert(Job.Attempt).values(job_id=job_id, attempt=1, outcome="failed"))
    session.execute(text("SET LOCAL sa_jobqueue.actor = 'ann'"))
    delete_chains(session, [chain_id])
    session.commit()
    assert (jobs.attempts(chain_id), len(jobs.attempts(other_id))) == ([], 1)
    (dead_letter,), (other_dead_letter,) = jobs.dead_letters(chain_id), jobs.dead_letters(other_id)
    assert (dead_letter["resolution"], dead_letter["resolved_by"]) == ("dismissed", "ann")
    assert dead_letter["resolved_at"] is not None
    assert other_dead_letter["resolution"] is None
    assert redrive_dead_letters(session).ids == [other_id]


def test_a_deletion_keeps_the_resolution_of_resolved_dead_letters(session: Session, jobs: Jobs) -> None:
    chain_id = jobs.add(JobStatus.DEAD)
    redrive_dead_letters(session, by="bob")
    session.commit()
    delete_chains(session, [chain_id])
    session.commit()
    assert [(row["resolution"], row["resolved_by"]) for row in jobs.dead_letters(chain_id)] == [("redriven", "bob")]


def test_deleted_jobs_are_detached_from_the_session(session: Session, jobs: Jobs) -> None:
    job = get_job(session, jobs.add())
    with session.begin_nested() as savepoint:
        delete_chains(session, [job.id])
        assert inspect(job).deleted
        savepoint.rollback()
    assert inspect(job).persistent
    delete_chains(session, [job.id])
    session.commit()
    assert inspect(job).detached


def test_pending_jobs_of_the_same_session_are_flushed_and_deleted(session: Session, jobs: Jobs) -> None:
    job = Job("test")
    session.add(job)
    assert delete_chains(session, [job.id]).ids == [job.id]
    session.commit()
    assert jobs.count() == 0


# What is refused.


def test_delete_chains_names_all_unknown_ids_and_deletes_nothing(session: Session, jobs: Jobs) -> None:
    chain_id, unknown = jobs.add(), [uuid7(), uuid7()]
    with pytest.raises(errors.NotFoundError) as caught:
        delete_chains(session, [unknown[0], chain_id, continuation(jobs, chain_id), unknown[1]])
    assert caught.value.ids == tuple(unknown)
    session.commit()
    assert jobs.count() == 2


def test_the_id_of_a_continuation_is_refused_naming_its_chain(session: Session, jobs: Jobs) -> None:
    chain_id = jobs.add()
    job_id = continuation(jobs, chain_id)
    with pytest.raises(errors.NotFoundError, match=f"{job_id} belongs to chain {chain_id}") as caught:
        delete_chains(session, [job_id])
    assert caught.value.ids == (job_id,)


def test_a_single_id_or_too_many_ids_are_refused(session: Session) -> None:
    with pytest.raises(errors.InvalidJobError, match="chain_ids: must be a list of ids, not one id"):
        delete_chains(session, str(uuid7()))
    with pytest.raises(errors.InvalidJobError, match="chain_ids: must be at most 1,000 a call, got 1,001"):
        delete_chains(session, [uuid7() for _ in range(1001)])


@pytest.mark.parametrize("is_open", [True, False], ids=["waits", "waited"])
def test_a_chain_that_is_a_blocker_of_another_chain_is_not_deleted(
    session: Session, jobs: Jobs, engine: Engine, is_open: bool
) -> None:
    blocker, root = jobs.add(), jobs.add(JobStatus.COMPLETED)
    job_id = continuation(jobs, root, status=JobStatus.BLOCKED if is_open else JobStatus.COMPLETED)
    wait_for(engine, job_id, blocker, is_open=is_open)
    other_id = jobs.add()
    with pytest.raises(errors.ChainReferencedError) as caught:
        delete_chains(session, [other_id, blocker], cascade=True)
    assert caught.value.references == [(blocker, job_id)]
    with Session(engine) as third, third.begin():
        # No lock is kept by what was refused, though the transaction goes on.
        assert third.scalars(select(Job.id).with_for_update(nowait=True)).all()
    session.commit()
    assert jobs.count() == 4
    assert delete_chains(session, [root, blocker]).ids == [blocker, root]


def test_a_foreign_key_of_the_application_raises_conflict_error_on_deletion(engine: Engine, jobs: Jobs) -> None:
    chain_id, other_id = jobs.add(), jobs.add()
    with Session(engine) as session, session.begin() as whole:
        session.execute(text("CREATE TABLE receipt (job_id uuid CONSTRAINT fk_receipt_job REFERENCES job)"))
        session.execute(text("INSERT INTO receipt VALUES (:id)"), {"id": chain_id})
        with pytest.raises(errors.ConflictError) as caught:
            delete_chains(session, [chain_id])
        assert caught.value.constraint == "fk_receipt_job"
        assert delete_chains(session, [other_id]).ids == [other_id]  # the session is as it was
        whole.rollback()


# Notifications.


def test_deletion_notifies_workers_and_waiters_at_its_commit(
    session: Session, jobs: Jobs, engine: Engine, notifications: Notifications
) -> None:
    running, awaited, neither = jobs.add(JobStatus.RUNNING), jobs.add(), jobs.add()
    at_work = continuation(jobs, neither, status=JobStatus.RUNNING)
    write(engine, update(Job).where(Job.id == awaited).values(has_waiters=True))
    delete_chains(session, [running, awaited, neither])
    assert notifications.seen() == []
    session.commit()
    assert sorted(notifications.seen()) == sorted([("ended", str(awaited)), ("lost", str(running)), ("lost", str(at_work))])


# What goes with it.


def test_cascade_deletes_the_blockers_of_roots_and_continuations(session: Session, jobs: Jobs, engine: Engine) -> None:
    of_root, of_continuation, below, unrelated, root = (jobs.add() for _ in range(5))
    wait_for(engine, root, of_root, is_open=False)
    wait_for(engine, continuation(jobs, root, status=JobStatus.BLOCKED), of_continuation)
    wait_for(engine, continuation(jobs, of_continuation, status=JobStatus.BLOCKED), below)
    assert delete_chains(session, [root], cascade=True).ids == [of_root, of_continuation, below, root]
    session.commit()
    assert set(jobs.statuses()) == {unrelated}
    assert edges(engine) == set()


def test_cascade_deletes_neither_dependants_nor_blockers_of_other_chains(
    session: Session, jobs: Jobs, engine: Engine
) -> None:
    shared, dependant, other_dependant = jobs.add(), jobs.add(JobStatus.BLOCKED), jobs.add(JobStatus.BLOCKED)
    wait_for(engine, dependant, shared)
    wait_for(engine, other_dependant, shared)
    with pytest.raises(errors.ChainReferencedError) as caught:
        delete_chains(session, [dependant], cascade=True)
    assert caught.value.references == [(shared, other_dependant)]
    assert delete_chains(session, [dependant, other_dependant], cascade=True).ids == [shared, dependant, other_dependant]


@pytest.mark.long
def test_a_fan_in_of_thousands_is_deleted_in_one_call(session: Session, jobs: Jobs, engine: Engine) -> None:
    root = jobs.add(JobStatus.BLOCKED)
    wait_for(engine, root, *jobs.add_many(3000))
    assert len(delete_chains(session, [root], cascade=True).ids) == 3001
    session.commit()
    assert jobs.count() == 0
