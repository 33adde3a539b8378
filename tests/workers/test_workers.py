"""Workers as the database knows them: listed, asked to drain, and never kept from beating for long."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import WorkerFilter, WorkerStatus, drain_workers, list_workers
from sa_jobqueue.statements import leases
from sa_jobqueue.types import WorkerState
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, wait_until
from tests.statements.cases import heartbeat_parameters

pytestmark = both_servers
EVERYBODY = WorkerFilter()


def ids(statuses: Iterable[WorkerStatus]) -> list[str]:
    return [worker.id for worker in statuses]


def test_workers_are_listed_with_their_running_jobs_and_heartbeat_age(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, silent_for=7, concurrency=3)
    jobs.add_worker("idle:1")
    for status in (JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.PENDING):
        jobs.add(status)
    idle, busy = list_workers(session)
    assert (idle.id, idle.running, busy.id, busy.running, busy.concurrency) == ("idle:1", 0, WORKER, 2, 3)
    assert busy.silent_for >= timedelta(seconds=7) > idle.silent_for >= timedelta(0)
    assert (busy.state, busy.drain_requested_at) == (WorkerState.RUNNING, None)


@pytest.mark.parametrize(
    ("where", "expected_ids"),
    [
        (EVERYBODY, ["a-1", "a-2", "ax1", "b_1"]),
        (WorkerFilter(names=["a-*"]), ["a-1", "a-2"]),
        (WorkerFilter(names=["a*1"]), ["a-1", "ax1"]),
        (WorkerFilter(names=["b_1", "a-1"]), ["a-1", "b_1"]),
        (WorkerFilter(names=["a_1"]), []),  # nothing but * stands for others
        (WorkerFilter(names=["%"]), []),
        (WorkerFilter(queues=["mail", "none"]), ["a-2"]),
        (WorkerFilter(ids=["ax1", "who"]), ["ax1"]),
        (WorkerFilter(names=["a-*"], queues=["default"]), ["a-1", "a-2"]),
    ],
)
def test_a_worker_filter_selects_the_same_for_listing_and_draining(
    session: Session, jobs: Jobs, where: WorkerFilter, expected_ids: list[str]
) -> None:
    for worker_id in ("a-1", "ax1", "b_1"):
        jobs.add_worker(worker_id)
    jobs.add_worker("a-2", queues=["mail", "default"])
    assert ids(list_workers(session, where=where)) == expected_ids
    assert drain_workers(session, where=where).ids == expected_ids
    draining_ids = [worker.id for worker in list_workers(session) if worker.drain_requested_at is not None]
    assert draining_ids == expected_ids


def test_a_worker_filter_accepts_only_lists(session: Session) -> None:
    with pytest.raises(InvalidOptionError, match="names"):
        WorkerFilter(names="spark")
    with pytest.raises(InvalidOptionError, match="limit"):
        list_workers(session, limit=0)


def test_a_repeated_drain_request_keeps_its_first_time(sessions: Any, jobs: Jobs) -> None:
    jobs.add_worker()
    times = []
    for _ in range(2):
        with sessions.begin() as session:
            assert drain_workers(session, where=EVERYBODY).ids == [WORKER]
            times.append(session.scalars(select(Job.Worker.drain_requested_at)).one())
    assert times[0] == times[1]


def test_a_heartbeat_waits_for_a_concurrent_drain_request_and_returns_it(sessions: Any, jobs: Jobs, engine: Engine) -> None:
    jobs.add_worker()
    answers: list[Any] = []

    def send_heartbeat() -> None:
        with engine.begin() as connection:
            answers.append(connection.execute(leases.heartbeat(Job), heartbeat_parameters()).scalar_one())

    with sessions() as session:
        drain_workers(session, where=EVERYBODY)
        beating = threading.Thread(target=send_heartbeat)
        beating.start()
        wait_until(lambda: _waiting(engine) == 1, description="the heartbeat waits")
        session.commit()
    beating.join(PATIENCE)
    assert answers[0] is not None


def test_concurrent_drain_requests_lock_workers_in_one_order(engine: Engine, sessions: Any, jobs: Jobs) -> None:
    # The rows lie in the other order than their ids sort: who locked them as they lie would hold what the second needs.
    for worker_id in ("z", "m", "a"):
        jobs.add_worker(worker_id)
    locked_ids: list[list[str]] = []

    def ask() -> None:
        locked_ids.append(call(sessions, drain_workers, where=EVERYBODY).ids)

    with sessions() as first:
        assert drain_workers(first, where=WorkerFilter(ids=["a"])).ids == ["a"]
        second = threading.Thread(target=ask)
        second.start()
        wait_until(lambda: _waiting(engine) == 1, description="the second waits for the first row")
        first.connection().exec_driver_sql("SET LOCAL lock_timeout = '60s'")
        assert drain_workers(first, where=EVERYBODY).ids == ["a", "m", "z"]
        first.commit()
    second.join(PATIENCE)
    assert locked_ids == [["a", "m", "z"]]


def test_deleting_dead_workers_skips_locked_rows(two_sessions: tuple[Session, Session], jobs: Jobs) -> None:
    first, second = two_sessions
    jobs.add_worker("asked", silent_for=999)
    jobs.add_worker("gone", silent_for=999)
    drain_workers(first, where=WorkerFilter(ids=["asked"]))
    second.execute(leases.forget_dead_workers(Job), {"gone_after": timedelta(seconds=1)})  # waits for no lock
    second.commit()
    first.commit()
    assert ids(list_workers(second)) == ["asked"]


def test_a_stopping_worker_waits_for_a_concurrent_drain_request(two_sessions: tuple[Session, Session], jobs: Jobs) -> None:
    first, second = two_sessions
    jobs.add_worker()
    drain_workers(first, where=EVERYBODY)
    with pytest.raises(OperationalError, match="lock timeout"):
        second.execute(leases.forget_worker(Job), {"worker_id": WORKER})
    second.rollback()
    first.commit()
    second.execute(leases.forget_worker(Job), {"worker_id": WORKER})
    assert list_workers(second).items == []


def _waiting(engine: Engine) -> int:
    with engine.connect() as connection:
        count: int = connection.execute(
            text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
        ).scalar_one()
        return count
