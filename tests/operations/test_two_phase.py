"""Operations in two-phase sessions: PostgreSQL refuses to prepare a transaction that notifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Schedule, operations
from tests.fixtures.jobs import Jobs


def cancels_a_job_that_runs(session: Session, jobs: Jobs) -> None:
    operations.cancel_jobs(session, [jobs.add(JobStatus.RUNNING, worker_id="other")])


def cancels_a_chain_that_is_waited_for(session: Session, jobs: Jobs) -> None:
    first = Job("test")
    session.add_all([first, Job("test", blockers=[first])])
    session.commit()
    operations.cancel_chains(session, [first.id])


def dead(jobs: Jobs) -> operations.DeadLetterFilter:
    jobs.add(JobStatus.DEAD)
    return operations.DeadLetterFilter()


OPERATIONS: list[Callable[[Session, Jobs], Any]] = [
    cancels_a_job_that_runs,
    cancels_a_chain_that_is_waited_for,
    lambda session, jobs: operations.trigger_jobs(session, [jobs.add()]),
    lambda session, jobs: operations.redrive_dead_letters(session, where=dead(jobs)),
    lambda session, jobs: operations.delete_chains(session, [jobs.add(JobStatus.DEAD)]),
    lambda session, jobs: operations.pause_queues(session, ["default"]),
    lambda session, jobs: operations.send_event(session, "approved"),
    lambda session, jobs: operations.upsert_schedule(session, Schedule(name="s", type_name="test", cron="0 0 1 1 *")),
    lambda session, jobs: session.execute(text("INSERT INTO job_queue (type_name) VALUES ('test')")),
    lambda session, jobs: session.execute(text("UPDATE job_queue SET status = 'cancelled'")),
]


@pytest.mark.parametrize("operate", OPERATIONS)
def test_an_operation_is_prepared_and_committed(engine: Engine, jobs: Jobs, operate: Callable[[Session, Jobs], Any]) -> None:
    jobs.add()
    with Session(engine, twophase=True) as session:
        operate(session, jobs)
        session.commit()


def test_a_transaction_prepared_by_hand(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("SET LOCAL sa_jobqueue.notify = 'off'")
        connection.exec_driver_sql("INSERT INTO job_queue (type_name) VALUES ('test')")
        connection.exec_driver_sql("PREPARE TRANSACTION 'by hand'")
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("COMMIT PREPARED 'by hand'")
    with Session(engine) as session:
        assert session.query(Job).count() == 1
