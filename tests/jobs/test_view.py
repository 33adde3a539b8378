"""`job_queue`, the face for plain SQL: accepted changes, and refused ones with their messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.ids import uuid7
from sa_jobqueue.payloads import opened
from sa_jobqueue.registry.job_types import Registry
from tests.fixtures.database import both_servers
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.plans import connect
from tests.fixtures.workers import PATIENCE

pytestmark = both_servers

DUE = [("due", "default")]
PENDING, BLOCKED, RUNNING = JobStatus.PENDING, JobStatus.BLOCKED, JobStatus.RUNNING
COMPLETED, DEAD, CANCELLED = JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED


@pytest.fixture
def sql(database_url: str) -> Any:
    """Give a client that knows nothing of this library."""
    with connect(database_url, guarded=False) as connection:
        yield connection


def refused(sql: Any, statement: str, *values: Any) -> tuple[str, str]:
    """Return the SQLSTATE and the message with which a statement is refused."""
    with pytest.raises(psycopg.Error) as caught:
        sql.execute(statement, values)
    return caught.value.sqlstate or "", caught.value.diag.message_primary or ""


# INSERT.


@pytest.mark.parametrize(
    "document", [{"sa_jobqueue.codec": "zlib", "data": "x"}, {"sa_jobqueue.codec": "zlib", "data": 1, "n": 2}, [], 7, {}]
)
def test_no_data_chooses_the_codec_that_decodes_it(sql: Any, session: Session, document: Any) -> None:
    """The view stores what looks encoded with a mark that names no codec, as the writers in Python do."""
    sql.execute("INSERT INTO job_queue (type_name, input) VALUES ('send', %s)", [json.dumps(document)])
    stored = session.scalars(select(Job.input)).one()
    assert opened("input", stored, Registry().find_codec) == document


def test_an_insert_into_the_view_enqueues(sql: Any, session: Session, notifications: Notifications) -> None:
    returned = sql.execute(
        "INSERT INTO job_queue (type_name, input) VALUES ('send', '{\"n\": 1}') RETURNING id, queue, status, scheduled_at"
    ).fetchone()
    job_id: UUID = returned[0]
    job = session.get_one(Job, job_id)
    assert returned[1:] == ("default", "pending", job.scheduled_at)
    assert (job.type_name, job.input, job.status, job.priority) == ("send", {"n": 1}, PENDING, 0)
    assert (job.chain_id, job.chain_type_name, job.chain_index) == (job_id, "send", 0)
    assert (job.max_attempts, job.attempt, job.input_version) == (20, 0, 1)
    assert job_id.version == 7
    assert notifications.seen() == DUE


def test_database_generated_ids_are_ordered_by_time(sql: Any) -> None:
    ids = [sql.execute("INSERT INTO job_queue (type_name) VALUES ('a') RETURNING id").fetchone()[0] for _ in range(3)]
    stamps = [job_id.int >> 80 for job_id in ids]
    now = datetime.now(UTC).timestamp() * 1000
    assert stamps == sorted(stamps)
    assert all(abs(stamp - now) < 60_000 for stamp in stamps)
    assert {(job_id.version, job_id.variant) for job_id in ids} == {(7, uuid7().variant)}


def test_every_column_of_the_view_may_be_inserted(sql: Any, jobs: Jobs, notifications: Notifications) -> None:
    job_id, due = uuid7(), datetime(2099, 1, 1, tzinfo=UTC)
    sql.execute(
        "INSERT INTO job_queue (id, queue, type_name, input, status, scheduled_at)"
        " VALUES (%s, 'q', 'a', '1', 'pending', %s)",
        [job_id, due],
    )
    job = jobs.get(job_id)
    assert (job["queue"], job["input"], job["scheduled_at"]) == ("q", 1, due)
    assert notifications.seen() == [("due", "q")]


def test_an_inserted_past_time_means_now_and_a_missing_input_is_json_null(sql: Any, jobs: Jobs) -> None:
    sql.execute("INSERT INTO job_queue (type_name, scheduled_at) VALUES ('a', '-infinity')")
    ((created, due, kind),) = sql.execute("SELECT created_at, scheduled_at, jsonb_typeof(input) FROM job").fetchall()
    assert created == due
    assert kind == "null"


def test_many_rows_can_be_inserted_in_one_statement(sql: Any, jobs: Jobs) -> None:
    sql.execute("INSERT INTO job_queue (type_name, input) SELECT 'a', to_jsonb(n) FROM generate_series(1, 50) AS n")
    assert jobs.count() == 50


def test_a_rolled_back_insert_sends_no_notification(sql: Any, jobs: Jobs, notifications: Notifications) -> None:
    with sql.transaction(force_rollback=True):
        sql.execute("INSERT INTO job_queue (type_name) VALUES ('a')")
    assert jobs.count() == 0
    assert notifications.seen() == []


@pytest.mark.parametrize(
    ("values", "state", "message"),
    [
        ("(type_name) VALUES (NULL)", "SJ002", "type_name: a job needs the name of its type"),
        ("(type_name) VALUES ('')", "SJ002", "type_name: a job needs the name of its type"),
        ("(type_name, status) VALUES ('a', 'running')", "SJ001", "a job is enqueued as pending, not as running"),
        ("(type_name, status) VALUES ('a', 'blocked')", "SJ001", "a job is enqueued as pending, not as blocked"),
        ("(type_name, queue) VALUES ('a', '')", "SJ002", "queue"),
    ],
)
def test_an_invalid_insert_into_the_view_is_refused(sql: Any, jobs: Jobs, values: str, state: str, message: str) -> None:
    found = refused(sql, f"INSERT INTO job_queue {values}")
    assert found[0] == state
    assert message in found[1]
    assert jobs.count() == 0


# UPDATE of status.

LEGAL = {
    (BLOCKED, CANCELLED),
    (PENDING, CANCELLED),
    (RUNNING, CANCELLED),
    (DEAD, PENDING),
    *((status, status) for status in JobStatus),
}


def test_the_view_allows_only_meaningful_status_changes(sql: Any, jobs: Jobs) -> None:
    statement = "UPDATE job_queue SET status = %s WHERE id = %s"
    for old, new in product(JobStatus, JobStatus):
        job_id = jobs.add(old)
        if (old, new) in LEGAL:
            assert sql.execute(statement, [new, job_id]).rowcount == 1
            assert jobs.status(job_id) is new
        else:
            before = dict(jobs.get(job_id))
            message = f"job {job_id}: is {old}, which cannot become {new}"
            assert refused(sql, statement, new, job_id) == ("SJ001", message)
            assert dict(jobs.get(job_id)) == before


def test_a_job_cancelled_through_the_view_has_ended(sql: Any, jobs: Jobs, notifications: Notifications) -> None:
    for status in (BLOCKED, PENDING):
        job_id = jobs.add(status)
        sql.execute("UPDATE job_queue SET status = 'cancelled' WHERE id = %s", [job_id])
        job = jobs.get(job_id)
        assert job["completed_at"] == job["chain_completed_at"] is not None
        assert jobs.attempts(job_id) == []
    assert notifications.seen() == []


def test_cancelling_a_running_job_ends_its_attempt_and_notifies_its_worker(
    sql: Any, jobs: Jobs, notifications: Notifications
) -> None:
    job_id = jobs.add(RUNNING)
    started = jobs.get(job_id)["started_at"]
    sql.execute("UPDATE job_queue SET status = 'cancelled' WHERE id = %s", [job_id])
    job, (attempt,) = jobs.get(job_id), jobs.attempts(job_id)
    assert (job["leased_by"], job["leased_until"], job["attempt"]) == (None, None, 1)
    assert (attempt["outcome"], attempt["worker_id"], attempt["started_at"], attempt["attempt"]) == (
        "cancelled",
        WORKER,
        started,
        1,
    )
    assert notifications.seen() == [("lost", str(job_id))]


def test_redriving_through_the_view_requeues_the_same_job(sql: Any, jobs: Jobs, notifications: Notifications) -> None:
    job_id = jobs.add(DEAD, attempt=3, max_attempts=3)
    sql.execute("UPDATE job_queue SET status = 'pending' WHERE id = %s", [job_id])
    job, (dead_letter,) = jobs.get(job_id), jobs.dead_letters(job_id)
    assert (job["status"], job["attempt"], job["max_attempts"]) == (PENDING, 3, 6)
    assert job["completed_at"] is job["chain_completed_at"] is job["completed_by"] is None
    assert job["scheduled_at"] == dead_letter["resolved_at"]
    assert (dead_letter["resolution"], dead_letter["resolved_by"]) == ("redriven", "postgres")
    assert dead_letter["changed_xid"] == job["changed_xid"]
    assert notifications.seen() == DUE


def test_a_redrive_may_set_a_later_time(sql: Any, jobs: Jobs) -> None:
    job_id, due = jobs.add(DEAD), datetime(2099, 1, 1, tzinfo=UTC)
    sql.execute("UPDATE job_queue SET status = 'pending', scheduled_at = %s WHERE id = %s", [due, job_id])
    assert jobs.get(job_id)["scheduled_at"] == due


# UPDATE of scheduled_at.


@pytest.mark.parametrize("status", JobStatus)
def test_only_pending_or_blocked_jobs_can_be_rescheduled(
    sql: Any, jobs: Jobs, status: JobStatus, notifications: Notifications
) -> None:
    job_id, due = jobs.add(status), datetime(2099, 1, 1, tzinfo=UTC)
    statement = "UPDATE job_queue SET scheduled_at = %s WHERE id = %s"
    if status in {PENDING, BLOCKED}:
        sql.execute(statement, [due, job_id])
        assert jobs.get(job_id)["scheduled_at"] == due
        assert notifications.seen() == (DUE if status is PENDING else [])
    else:
        message = f"job {job_id}: is {status}, only a pending or blocked job can be rescheduled"
        assert refused(sql, statement, due, job_id) == ("SJ001", message)
        assert notifications.seen() == []
    assert jobs.status(job_id) is status


def test_rescheduling_to_a_past_time_means_now(sql: Any, jobs: Jobs) -> None:
    job_id = jobs.add(due_in=3600)
    before = jobs.get(job_id)["created_at"]
    sql.execute("UPDATE job_queue SET scheduled_at = '2020-01-01Z' WHERE id = %s", [job_id])
    assert before < jobs.get(job_id)["scheduled_at"] < before + timedelta(minutes=5)


# Everything else.


@pytest.mark.parametrize(
    "change", ["id = gen_random_uuid()", "queue = 'q'", "type_name = 'b'", "input = '2'", "input = NULL"]
)
def test_no_other_column_of_the_view_can_be_updated(sql: Any, jobs: Jobs, change: str) -> None:
    job_id = jobs.add(input=1)
    state, message = refused(sql, f"UPDATE job_queue SET {change} WHERE id = %s", job_id)
    assert (state, message) == ("SJ003", f"job {job_id}: only status and scheduled_at can be changed through this view")


def test_deleting_through_the_view_is_refused(sql: Any, jobs: Jobs) -> None:
    job_id = jobs.add()
    state, message = refused(sql, "DELETE FROM job_queue")
    assert (state, message) == ("SJ003", f"job {job_id}: cannot be deleted through this view, only cancelled")
    assert jobs.count() == 1


def test_an_update_through_the_view_checks_the_current_row(sql: Any, jobs: Jobs, engine: Engine, database_url: str) -> None:
    """The winner completes the job while the loser, who saw it running, waits to cancel it."""
    import threading

    job_id = jobs.add(RUNNING)
    answers: list[Any] = []

    def cancel() -> None:
        answers.append(refused(sql, "UPDATE job_queue SET status = 'cancelled' WHERE id = %s", job_id))

    with engine.begin() as winner:
        winner.execute(
            text("UPDATE job SET status = 'completed', leased_by = NULL, completed_at = now() WHERE id = :id"),
            {"id": job_id},
        )
        loser = threading.Thread(target=cancel)
        loser.start()
        until_locks_are_waited_for(engine)
    loser.join(timeout=PATIENCE)
    assert answers == [("SJ001", f"job {job_id}: is completed, which cannot become cancelled")]
    assert jobs.attempts(job_id) == []


def test_the_view_shows_what_the_table_holds(sql: Any, jobs: Jobs, session: Session) -> None:
    jobs.add(RUNNING, input={"a": 1}, queue="q")
    names = "id, queue, type_name, input, status, scheduled_at"
    assert sql.execute(f"SELECT {names} FROM job_queue").fetchall() == sql.execute(f"SELECT {names} FROM job").fetchall()
    assert session.scalars(select(Job.queue)).all() == ["q"]
